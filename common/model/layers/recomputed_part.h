// Parts of a forward pass whose intermediate results are not kept but computed again in the
// backward pass, and marks that report how far the backward pass has come.
//
// The parts are functions of tensors that autograd records. Both passes run them with grad mode
// enabled, and so with the same kernels. The gradients are therefore those of a plain forward pass,
// bit for bit.
#pragma once

#include <ATen/ATen.h>

#include <functional>

#include "kernels/torch/layers/norms_and_swiglu.h"

namespace taopd {

struct RecomputedPart {
  // Computes the outputs from the inputs. Runs in the forward pass and again in the backward pass,
  // so everything that it refers to must live until then.
  std::function<SumAndNorm(const SumAndNorm& inputs)> run;
  // Returns the norm of a sum, without gradients. If this is empty, inputs.normed_NH is undefined.
  std::function<at::Tensor(const at::Tensor& sum_NH)> norm;
};

// Returns part.run(inputs). Keeps only inputs.sum_NH for the backward pass. The gradients of the
// parameters that `run` uses are added to their .grad by a nested backward pass.
SumAndNorm Recomputed(const RecomputedPart& part, const SumAndNorm& inputs);
// Does the same for a part that computes one tensor from one.
at::Tensor Recomputed(const std::function<at::Tensor(const at::Tensor& input)>& run,
                      const at::Tensor& input);

// Returns `x`, whose norm may be undefined, unchanged. `on_backward` is called when the backward
// pass has computed the gradients of both tensors, and therefore of everything that was computed
// from them, and has added the gradients of all parameters used on the way to their .grad.
SumAndNorm Marked(const SumAndNorm& x, std::function<void()> on_backward);

}  // namespace taopd
