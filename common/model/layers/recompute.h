// Parts of a forward pass whose intermediate results are not kept for the backward pass but computed
// again in it, and marks that say when the backward pass has come so far.
//
// The parts are functions of tensors that autograd records. Both times they run with grad mode on,
// so they run the same kernels, and the gradients are those of a plain forward pass, bit for bit.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <utility>

namespace taopd {

// Two tensors that go from layer to layer: the residual stream and its norm. Either may be
// undefined.
using TensorPair = std::pair<at::Tensor, at::Tensor>;

struct RecomputedPart {
  // Computes the outputs from the inputs. Runs in the forward pass and once more in the backward
  // pass, so what it refers to must live that long.
  std::function<TensorPair(const TensorPair& inputs)> run;
  // Returns the second input from the first, without gradients. If it is empty, the second input is
  // undefined.
  std::function<at::Tensor(const at::Tensor& first)> second_input;
};

// Returns part.run(inputs). Keeps nothing but inputs.first for the backward pass. The gradients of
// parameters that `run` uses are added to their .grad by a backward pass of its own within the
// backward pass.
TensorPair Recomputed(const RecomputedPart& part, const TensorPair& inputs);

// Returns `tensors` themselves. `on_backward` is called when the backward pass has computed the
// gradients of both, that is, of everything that was computed from them, and has added the
// gradients of all parameters that were used on the way to their .grad.
TensorPair Marked(const TensorPair& tensors, std::function<void()> on_backward);

}  // namespace taopd
