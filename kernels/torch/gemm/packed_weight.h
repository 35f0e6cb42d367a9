// A linear layer's weights on the CPU, packed once for products with any number of rows.
//
//   y [M, N] = x [M, K] W^T + bias
//
// W may consist of several parts whose outputs follow one another (q, k and v; gate and up), so
// that one product computes them all.
//
// The weights are packed as kernels/cpu/gemm/packed_gemm.h describes: bfloat16 in pairs, float32 as
// it is, and float16 widened to float32, which is exact. Pairs are coded in three quarters of their
// bytes, without loss (kernels/cpu/gemm/coded_panel.h), unless the matrix's numbers are spread too
// widely for that. Products have the same bits either way. Sums are float32, and an element of y is
// a sum over k in an order that depends only on K and on the processor. Row m of y therefore
// depends only on row m of x, and not on M, the other rows or the number of threads. Decoding,
// prefill in chunks of any size and training give the same bits.
//
// The object owns the packed copy. It refers to the parts without copying them; after they have
// been written, Refresh() packs them again in place. An owner whose weights never change may drop
// the references and so free the parts. An adapter of a part (low_rank.h) is merged while the part
// is packed: the packed numbers are those of MergeAdapter.
//
// Wrong types, shapes and devices throw c10::Error. Any number of threads may call const functions
// at the same time; Refresh, Replace and DropSources must not overlap with any other call.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "kernels/cpu/gemm/packed_gemm.h"
#include "kernels/torch/gemm/lora/low_rank.h"
#include "kernels/torch/gemm/packed_product.h"

namespace taopd {

class PackedWeight {
 public:
  // An empty object. Only defined(), assignment and destruction are allowed.
  PackedWeight() = default;

  // The ways to pack pairs.
  enum class Pairs {
    kCoded,  // in three quarters of their bytes, for many products
    kPlain,  // in full, for a single product: coding would take longer than it saves
  };

  // Packs the parts on several threads. Each part is [N_i, K], contiguous and on the CPU; all are
  // bfloat16, float32 or float16. `biases` is empty or has one entry per part: undefined, or [N_i]
  // of any floating type. `adapters` is empty or has one entry per part, defined or not.
  explicit PackedWeight(std::vector<at::Tensor> parts, std::vector<at::Tensor> biases = {},
                        std::vector<LowRankAdapter> adapters = {}, Pairs pairs = Pairs::kCoded);

  // A copy would double the memory.
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;
  PackedWeight(PackedWeight&&) = default;
  PackedWeight& operator=(PackedWeight&&) = default;

  bool defined() const { return packed_.defined(); }
  // Whether the packed copy is coded. Refresh may change this, because new weights may not fit the
  // code.
  bool is_coded() const { return !coded_.empty(); }
  int64_t num_outputs() const { return num_outputs_; }  // N
  int64_t num_inputs() const { return num_inputs_; }    // K
  at::ScalarType dtype() const { return dtype_; }       // type of the parts and of x
  // Bytes of the packed copy without its bias, which is small.
  int64_t size_bytes() const;
  // The part of size_bytes that a memory plan, which expects coded pairs, does not account for.
  int64_t unplanned_bytes() const { return IsPairs(dtype_) && !is_coded() ? size_bytes() / 4 : 0; }

  // Packs again, in place, if a part, its adapter or a bias was written since it was packed (its
  // version counter moved). Returns whether it packed. Inference tensors have no version counter:
  // the constructor packs them once.
  bool Refresh();

  // Packs again, in place, if a part or a bias is at one of these addresses. The new tensor, which
  // has the same shape and type, takes its place.
  void Replace(const std::map<const void*, at::Tensor>& newer);

  // Drops the references to the parts, their adapters and the biases. Refresh does nothing from
  // then on.
  void DropSources();

  // Returns y [M, N] of type `out`, which is the type of x or float32, contiguous. Each sum is
  // float32, to which the bias is added; the result is rounded once. x is [M, K] of type dtype() on
  // the CPU; M may be 0. Not differentiable.
  at::Tensor Multiply(const at::Tensor& x_MK, at::ScalarType out) const;

  // Like Multiply, but writes y_MN, whose type is `out` and whose columns are adjacent; its rows
  // may have any stride. y_MN must not overlap with x_MK. Only tests pass `gemm`.
  void MultiplyInto(const at::Tensor& x_MK, const at::Tensor& y_MN,
                    const cpu::PackedGemm& gemm = cpu::BestPackedGemm()) const;

 private:
  struct Source {
    at::Tensor tensor;
    int64_t version = 0;  // when it was packed
  };

  void Pack();
  // Allocates packed_ unless it already has this size and type.
  void Reserve(int64_t num, at::ScalarType dtype);
  template <typename PackColumns>
  void PackParts(int64_t panel, const PackColumns& pack) const;
  bool PackCoded();
  void SetVersions();
  void PackPairPanel(int64_t panel, cpu::Bfloat16Bits* to) const;
  void PackFloatPanel(int64_t panel) const;
  PackedPanels panels() const;
  void PackBias() const;
  int64_t ColumnsOf(int64_t panel) const;  // outputs of a panel; the last one may have fewer
  bool HasAdapter(size_t part) const { return part < merged_.size() && merged_[part].has_value(); }

  Pairs pairs_ = Pairs::kCoded;
  std::vector<Source> parts_;
  std::vector<Source> biases_;
  std::vector<LowRankAdapter> adapters_;  // empty, or one per part
  std::vector<Source> adapter_factors_;   // the matrices of the adapters
  // Per part, its rows merged with its adapter, if it has one. Only while packing.
  std::vector<std::optional<MergedRows>> merged_;
  std::vector<int64_t> first_outputs_;  // first output of each part, and N
  int64_t num_outputs_ = 0;
  int64_t num_inputs_ = 0;
  at::ScalarType dtype_ = at::kFloat;
  at::Tensor packed_;                          // bfloat16, float32, or the bytes of coded steps
  std::vector<cpu::CodedPanelTables> tables_;  // tables of the coded panels, besides the steps
  std::vector<cpu::CodedPanel> coded_;         // refers to packed_ and tables_; empty if plain
  at::Tensor bias_N_;                          // float32; undefined if no part has one
};

}  // namespace taopd
