// The float32 sums of all parameters' gradients, and where backward passes add to them.
//
// Whole: one buffer holds the gradients of all parameters. From construction on, each parameter's
// .grad is a contiguous view of it, for bfloat16 parameters, too. A backward pass adds to it:
// autograd adds in place to a .grad that is there, in .grad's type, as long as it does not record
// the backward pass itself (create_graph). So gradients of several micro-batches are summed in
// float32, and there is no second copy.
//
// Sharded: only the sums of one shard's elements are kept. A parameter has a .grad while the
// section of the layout that it lies in is open, in a buffer that the caller brings; the caller
// opens a section before the backward pass comes to it, takes the gradients from the buffer when
// they are complete, adds its shard's part of their sums over the ranks to Range(...), and closes
// the section.
//
// Nothing else may replace or reset a .grad while this object lives. Not thread-safe. The
// destructor takes the .grad of all parameters away.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "common/model/decoder.h"
#include "trainer/optim/parameter_layout.h"

namespace taopd {

class FlatGradients {
 public:
  // Allocates the sums on the parameters' device and fills them with zeros: those of all
  // parameters, or with `only_shard` those of that shard of the layout. REQUIRES: all parameters
  // are contiguous and on one device.
  FlatGradients(std::vector<NamedParameter> parameters, const ParameterLayoutOptions& options,
                std::optional<int64_t> only_shard = std::nullopt);
  ~FlatGradients();
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  const ParameterLayout& layout() const { return layout_; }
  bool is_sharded() const { return is_sharded_; }
  // By their positions in the layout.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  at::TensorOptions options() const { return sums_.options(); }

  // A view of the sums; the gaps between parameters are zeros as long as nobody writes there.
  // REQUIRES: they are kept: one range of layout().Shard(shard) contains `range`.
  at::Tensor Range(FlatRange range) const;

  // Sharded: gives the parameters of the section a .grad in `buffer`, which has as many elements as
  // the section and is filled with zeros here. REQUIRES: the section is not open.
  void Open(int64_t section, at::Tensor buffer);
  // The section's buffer; undefined unless it is open.
  const at::Tensor& buffer(int64_t section) const { return buffers_[section]; }
  // Takes the .grad of the section's parameters away and returns the buffer.
  at::Tensor Close(int64_t section);
  void CloseAll();

  // Sets all sums to zero: once for each mini-batch, before its first micro-batch.
  void Zero();

  // Returns whether every .grad still is what this object made it.
  bool AreInPlace() const;

 private:
  // Views of `buffer`, which begins at range.begin, for the parameters that begin in `range`.
  void SetGrads(FlatRange range, const at::Tensor& buffer);

  std::vector<NamedParameter> parameters_;
  ParameterLayout layout_;
  const bool is_sharded_;
  std::vector<FlatRange> ranges_;    // what sums_ holds, ascending
  std::vector<int64_t> places_;      // of each range in sums_
  at::Tensor sums_;                  // 1-D
  std::vector<at::Tensor> buffers_;  // of the sections; empty unless sharded
};

}  // namespace taopd
