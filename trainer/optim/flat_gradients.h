// The float32 sums of all parameters' gradients, and the .grad tensors through which backward
// passes add to them.
//
// Whole gradients: One buffer holds the gradients of all parameters. From construction on, each
// parameter's .grad is a contiguous float32 view of it, also for bfloat16 parameters. Autograd adds
// in place to an existing .grad, in .grad's type, unless it records the backward pass itself
// (create_graph). So the gradients of several micro-batches are summed in float32 without a second
// copy.
//
// Sharded gradients: Only the sums of one shard's elements are kept. A parameter has a .grad, a
// view of a buffer of the caller, only while its section of the layout is open. The caller opens a
// section before the backward pass reaches it, takes the gradients from the buffer when they are
// complete, sums them over the ranks, adds its shard's part of the sums to Range(...), and closes
// the section.
//
// Nothing else may replace or reset a .grad while this object lives. Not thread-safe. The
// destructor removes the .grad of all parameters.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <vector>

#include "common/model/decoder.h"
#include "trainer/optim/parameter_layout.h"

namespace taopd {

// Returns a view of a piece of `parameter`.
inline at::Tensor ElementsOf(const at::Tensor& parameter, const ParameterPiece& piece) {
  return parameter.view({-1}).narrow(0, piece.offset, piece.size);
}

class FlatGradients {
 public:
  // Allocates the sums on the parameters' device and fills them with zeros. They cover all
  // parameters or, with `only_shard`, that shard of the layout. REQUIRES: all parameters are
  // contiguous and on one device.
  FlatGradients(std::vector<NamedParameter> parameters, const ParameterLayoutOptions& options,
                std::optional<int64_t> only_shard = std::nullopt);
  ~FlatGradients();
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  const ParameterLayout& layout() const { return layout_; }
  bool is_sharded() const { return is_sharded_; }
  // Indexed by their positions in the layout.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  at::TensorOptions options() const { return sums_.options(); }

  // Returns a view of the sums. The gaps between parameters hold zeros unless the caller writes to
  // them. REQUIRES: these sums are kept, that is, one range of layout().Shard(shard) contains
  // `range`.
  at::Tensor Range(FlatRange range) const;

  // Sets the .grad of the section's parameters to views of `buffer` and fills it with zeros.
  // REQUIRES: gradients are sharded, the section is not open, and `buffer` has as many elements as
  // the section.
  void Open(int64_t section, at::Tensor buffer);
  // Returns the section's buffer, which is undefined unless the section is open.
  const at::Tensor& buffer(int64_t section) const { return buffers_[section]; }
  // Removes the .grad of the section's parameters and returns the buffer.
  at::Tensor Close(int64_t section);
  void CloseAll();

  // Sets all sums to zero, for the first micro-batch of the next mini-batch.
  void Zero();

  // Returns whether every .grad is still the tensor that this object set.
  bool AreInPlace() const;

 private:
  // Sets the .grad of the parameters that begin in `range` to views of `buffer`, which begins at
  // range.begin.
  void SetGrads(FlatRange range, const at::Tensor& buffer);

  std::vector<NamedParameter> parameters_;
  ParameterLayout layout_;
  const bool is_sharded_;
  std::vector<FlatRange> ranges_;    // the ranges that sums_ holds, ascending
  std::vector<int64_t> places_;      // the place of each range in sums_
  at::Tensor sums_;                  // 1-D
  std::vector<at::Tensor> buffers_;  // one per section; empty unless sharded
};

}  // namespace taopd
