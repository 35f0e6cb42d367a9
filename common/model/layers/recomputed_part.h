// Parts of a forward pass whose intermediate results are not kept but computed again in the
// backward pass, and marks that report how far the backward pass has come.
//
// The parts are functions of tensors that autograd records. They run with grad mode on both times
// and therefore run the same kernels, so the gradients are those of a plain forward pass, bit for
// bit.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <utility>

namespace taopd {

// Two tensors that go from layer to layer: the residual stream and its norm. Either may be
// undefined.
using TensorPair = std::pair<at::Tensor, at::Tensor>;

struct RecomputedPart {
  // Computes the outputs from the inputs. Runs in the forward pass and again in the backward pass,
  // so everything that it refers to must live until then.
  std::function<TensorPair(const TensorPair& inputs)> run;
  // Returns the second input from the first, without gradients. If this is empty, the second input
  // is undefined.
  std::function<at::Tensor(const at::Tensor& first)> second_input;
};

// Returns part.run(inputs). Keeps only inputs.first for the backward pass. The gradients of the
// parameters that `run` uses are added to their .grad by a nested backward pass.
TensorPair Recomputed(const RecomputedPart& part, const TensorPair& inputs);

// Returns `tensors` unchanged. `on_backward` is called when the backward pass has computed the
// gradients of both, and therefore of everything that was computed from them, and has added the
// gradients of all parameters used on the way to their .grad.
TensorPair Marked(const TensorPair& tensors, std::function<void()> on_backward);

}  // namespace taopd
