#include "trainer/optim/flat_gradients.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include <optional>

namespace taopd {
namespace {

at::Tensor Weight(at::ScalarType dtype) {
  return at::randn({7, 5}).to(dtype).set_requires_grad(true);
}

// What a backward pass computes for y = x W^T with the upstream gradient 1, in the weight's type.
at::Tensor PlainGradient(const at::Tensor& weight, const at::Tensor& x) {
  const at::Tensor leaf = weight.detach().clone().set_requires_grad(true);
  at::linear(x, leaf).sum().backward();
  return leaf.grad();
}

// Autograd adds bfloat16 gradients to a float32 .grad in place, and does not round the sum.
TEST(FlatGradients, BackwardPassesAddInFloat32) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor weight = Weight(dtype), other = Weight(dtype);
    FlatGradients gradients({{"w", weight}, {"other", other}}, {});
    const void* const address = weight.grad().const_data_ptr();
    at::Tensor expected = at::zeros({7, 5}, at::kFloat);
    // The second is lost where the sum is rounded to bfloat16.
    for (const double scale : {1.0, 1e-3, 1.0}) {
      const at::Tensor x = (at::rand({3, 5}) * scale).to(dtype);
      at::linear(x, weight).sum().backward();
      expected.add_(PlainGradient(weight, x));
    }
    EXPECT_TRUE(at::equal(weight.grad(), expected));
    EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    EXPECT_EQ(weight.grad().const_data_ptr(), address);
    EXPECT_TRUE(gradients.AreInPlace());
    EXPECT_TRUE(at::equal(other.grad(), at::zeros({7, 5})));
    const ParameterSlot& slot = gradients.layout().slot(0);
    EXPECT_TRUE(at::equal(gradients.Range({slot.begin, slot.begin + slot.size}).view({7, 5}),
                          weight.grad()));
    gradients.Zero();
    EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0);
  }
}

TEST(FlatGradients, SeesAGradThatWasReplaced) {
  at::Tensor weight = Weight(at::kFloat);
  const FlatGradients gradients({{"w", weight}}, {});
  EXPECT_TRUE(gradients.AreInPlace());
  weight.mutable_grad() = weight.grad().clone();
  EXPECT_FALSE(gradients.AreInPlace());
  weight.mutable_grad().reset();
  EXPECT_FALSE(gradients.AreInPlace());
}

TEST(FlatGradients, TakesTheGradsAwayInTheEnd) {
  const at::Tensor weight = Weight(at::kBFloat16);
  std::optional<FlatGradients> gradients;
  gradients.emplace(std::vector<NamedParameter>{{"w", weight}}, ParameterLayoutOptions());
  EXPECT_TRUE(weight.grad().defined());
  gradients.reset();
  EXPECT_FALSE(weight.grad().defined());
}

}  // namespace
}  // namespace taopd
