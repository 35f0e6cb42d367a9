// Helpers of the tests of differentiable functions: leaves, gradients by backward, and runs with
// several numbers of threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/kernels/torch/random_tensor.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {

inline at::Tensor Leaf(const at::Tensor& value, at::ScalarType dtype) {
  return value.detach().to(dtype, /*non_blocking=*/false, /*copy=*/true).set_requires_grad(true);
}

using DifferentiableFunction = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

struct ResultAndGradients {
  at::Tensor result;
  std::vector<at::Tensor> gradients;  // gradients of the inputs
};

// Returns the result for leaves of this type, and the gradients of sum(result * weights).
inline ResultAndGradients Differentiate(const DifferentiableFunction& function,
                                        const std::vector<at::Tensor>& values,
                                        const at::Tensor& weights, at::ScalarType dtype) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& value : values) leaves.push_back(Leaf(value, dtype));
  ResultAndGradients computed;
  computed.result = function(leaves);
  (computed.result * weights.to(dtype)).sum().backward();
  computed.result = computed.result.detach();
  for (const at::Tensor& leaf : leaves) computed.gradients.push_back(leaf.grad());
  return computed;
}

// Compares `actual` of this type with the composition in float64, by ExpectRelative. The values and
// the weights must be exact in the type, so that both start from the same numbers.
inline void ExpectGradients(const DifferentiableFunction& actual,
                            const DifferentiableFunction& expected,
                            const std::vector<at::Tensor>& values, const at::Tensor& weights,
                            at::ScalarType dtype, double tolerance, const std::string& what,
                            double smallest_size = 0) {
  const ResultAndGradients a = Differentiate(actual, values, weights, dtype);
  const ResultAndGradients e = Differentiate(expected, values, weights, at::kDouble);
  EXPECT_EQ(a.result.scalar_type(), dtype) << what;
  ExpectRelative(a.result, e.result, tolerance, what + ", result", smallest_size);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(a.gradients[i].defined(), e.gradients[i].defined()) << what << ", gradient " << i;
    if (!e.gradients[i].defined()) continue;
    EXPECT_EQ(a.gradients[i].scalar_type(), dtype) << what << ", gradient " << i;
    ExpectRelative(a.gradients[i], e.gradients[i], tolerance,
                   what + ", gradient " + std::to_string(i), smallest_size);
  }
}

// Expects the same bits with 1, 2, 4 and 16 threads.
inline void ExpectSameBitsWithAnyThreads(const DifferentiableFunction& function,
                                         const std::vector<at::Tensor>& values,
                                         const at::Tensor& weights, at::ScalarType dtype) {
  const ThreadsRestored one_thread(1);
  const ResultAndGradients one = Differentiate(function, values, weights, dtype);
  for (const int threads : {2, 4, 16}) {
    at::set_num_threads(threads);
    const ResultAndGradients many = Differentiate(function, values, weights, dtype);
    EXPECT_TRUE(at::equal(many.result, one.result)) << threads << " threads";
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(at::equal(many.gradients[i], one.gradients[i]))
          << threads << " threads, gradient " << i;
    }
  }
}

// With float32 gradients that already exist (gradient_target.h), two backward passes add twice the
// gradients of `expected`, computed in float64, to them in place. `inputs` says which values have
// such a gradient. A tolerance below the rounding of a 16-bit dtype shows that nothing was rounded
// to it.
inline void ExpectAddsToTargets(const DifferentiableFunction& actual,
                                const DifferentiableFunction& expected,
                                const std::vector<at::Tensor>& values, const at::Tensor& weights,
                                at::ScalarType dtype, const std::vector<size_t>& inputs,
                                double tolerance) {
  const ResultAndGradients once = Differentiate(expected, values, weights, at::kDouble);
  std::vector<at::Tensor> leaves, targets;
  for (const at::Tensor& value : values) leaves.push_back(Leaf(value, dtype));
  for (const size_t i : inputs) {
    targets.push_back(at::ones(leaves[i].sizes(), at::kFloat));
    leaves[i].mutable_grad() = targets.back();
  }
  for (int pass = 0; pass < 2; ++pass) (actual(leaves) * weights.to(dtype)).sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor gradient = leaves[inputs[i]].grad();
    EXPECT_EQ(gradient.const_data_ptr(), targets[i].const_data_ptr()) << "input " << inputs[i];
    ExpectRelative(gradient - 1, 2 * once.gradients[inputs[i]], tolerance,
                   "input " + std::to_string(inputs[i]));
  }
}

}  // namespace taopd::testing
