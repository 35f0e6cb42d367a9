// The copy of a model's matrices that inference on the CPU uses: projections that read the same
// input are fused into one, merged with their adapters, and laid out for the kernels
// (kernels/torch/gemm/packed_weight.h). Embeddings, norms and rows of the head by id are read in
// place.
//
// The parameters remain authoritative. WeightVersion tells whether they were written; Refresh then
// packs the changed ones again, in place.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/model/weights/weights.h"
#include "kernels/torch/gemm/packed_weight.h"

namespace taopd {

struct PackedExpert {
  PackedWeight gate_up;  // [2 I, H]
  PackedWeight down;     // [H, I]
};

struct PackedLayer {
  PackedWeight qkv;      // [Q + 2 K, H]
  PackedWeight o;        // [H, Q]
  PackedWeight gate_up;  // [2 I, H]; undefined in a sparse layer
  PackedWeight down;     // [H, I]
  PackedWeight router;   // [E, H]; undefined in a dense layer
  std::vector<PackedExpert> experts;
};

// Not thread-safe.
class PackedWeights {
 public:
  // Packs the layers. Keeps references to the tensors of `weights`. Calls done(matrix) after
  // packing each matrix.
  PackedWeights(const ModelWeights& weights, std::function<void(const at::Tensor& matrix)> done);

  const PackedLayer& layer(size_t i) const { return layers_[i]; }
  // Returns the head, which the first call packs: training does not need it.
  const PackedWeight& lm_head();
  void Refresh();
  // Replaces the tensors at these addresses by the new ones, and packs the matrices that are made
  // from them again, in place. REQUIRES: shapes and types are the same; DropSources was not called.
  void Replace(const std::map<const void*, at::Tensor>& newer);
  // Returns the sum of PackedWeight::unplanned_bytes over all packed matrices.
  int64_t unplanned_bytes() const;
  // Drops the references to the tensors; the packed copies stay. REQUIRES: lm_head() was called.
  void DropSources();

 private:
  // Calls function(weight) for every packed matrix.
  template <typename Self, typename Function>
  static void ForEach(Self* self, const Function& function);

  std::function<void(const at::Tensor&)> done_;
  at::Tensor lm_head_VH_;
  std::vector<PackedLayer> layers_;
  PackedWeight lm_head_;
};

// Returns the sum of the version counters of all parameters and adapters. Every write through
// LibTorch and every step of the optimizer increases it.
uint64_t WeightVersion(const std::vector<WeightSlot>& slots);

}  // namespace taopd
