// The gradients of all parameters in one float32 buffer, in which they are accumulated.
//
// From construction on, each parameter's .grad is a contiguous float32 view of the buffer, for
// bfloat16 parameters, too. A backward pass adds to it: autograd adds in place to a .grad that is
// there, in .grad's type, as long as it does not record the backward pass itself (create_graph).
// So gradients of several micro-batches are summed in float32, and there is no second copy.
// Nothing may replace or reset a .grad while this object lives.
//
// Not thread-safe. The destructor takes the .grad of all parameters away.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "common/model/decoder.h"
#include "trainer/optim/parameter_layout.h"

namespace taopd {

class FlatGradients {
 public:
  // Allocates the buffer on the parameters' device and fills it with zeros. REQUIRES: all parameters
  // are contiguous and on one device.
  FlatGradients(std::vector<NamedParameter> parameters, const ParameterLayoutOptions& options);
  ~FlatGradients();
  FlatGradients(const FlatGradients&) = delete;
  FlatGradients& operator=(const FlatGradients&) = delete;

  const ParameterLayout& layout() const { return layout_; }
  // By their positions in the layout.
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

  // A view of the buffer; the gaps between parameters are zeros as long as nobody writes there.
  at::Tensor Range(FlatRange range) const;

  // Sets all gradients to zero: once for each mini-batch, before its first micro-batch.
  void Zero();

  // Returns whether every .grad still is a view of the buffer.
  bool AreInPlace() const;

 private:
  std::vector<NamedParameter> parameters_;
  ParameterLayout layout_;
  at::Tensor all_F_;  // F = layout_.size()
};

}  // namespace taopd
