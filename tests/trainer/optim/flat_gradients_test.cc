#include "trainer/optim/flat_gradients.h"

#include <ATen/ops/linear.h>
#include <gtest/gtest.h>

#include <optional>

namespace taopd::testing {
namespace {

at::Tensor Weight(at::ScalarType dtype) {
  return at::randn({7, 5}).to(dtype).set_requires_grad(true);
}

// Returns the gradient of a backward pass for y = x W^T with the upstream gradient 1, in the
// weight's type.
at::Tensor PlainGradient(const at::Tensor& weight, const at::Tensor& x) {
  const at::Tensor leaf = weight.detach().clone().set_requires_grad(true);
  at::linear(x, leaf).sum().backward();
  return leaf.grad();
}

// Autograd adds bfloat16 gradients to a float32 .grad in place and does not round the sum.
TEST(FlatGradients, BackwardPassesAddInFloat32) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor weight = Weight(dtype), other = Weight(dtype);
    FlatGradients gradients({{"w", weight}, {"other", other}}, {});
    const void* const address = weight.grad().const_data_ptr();
    at::Tensor expected = at::zeros({7, 5}, at::kFloat);
    // The second gradient would be lost if the sum were rounded to bfloat16.
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
    const ParameterSlot& slot = gradients.layout().slots().back();
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

TEST(FlatGradients, AShardHasGradsWhereASectionIsOpen) {
  const at::Tensor norm = at::randn({5}).set_requires_grad(true);
  const at::Tensor table = at::randn({3000, 2}).set_requires_grad(true);
  // The table is cut into three buckets of one section.
  FlatGradients gradients({{"model.embed_tokens.weight", table}, {"model.norm.weight", norm}},
                          {2, 2 * kFlatAlignment}, 1);
  const std::vector<GradientSection>& sections = gradients.layout().sections();
  ASSERT_EQ(sections.size(), 2u);
  EXPECT_FALSE(norm.grad().defined());
  EXPECT_TRUE(gradients.AreInPlace());
  gradients.Open(1, at::ones({sections[1].range.size()}));
  EXPECT_EQ(table.grad().sizes(), table.sizes());
  EXPECT_FALSE(norm.grad().defined());
  (table * 2).sum().backward();
  EXPECT_TRUE(gradients.AreInPlace());
  EXPECT_EQ(gradients.buffer(1).sum().item<double>(), 2 * 6000);
  (norm * 2).sum().backward();  // autograd makes a .grad of its own
  EXPECT_FALSE(gradients.AreInPlace());
  at::Tensor(norm).mutable_grad().reset();
  gradients.Close(1);
  EXPECT_FALSE(table.grad().defined());
  EXPECT_TRUE(gradients.AreInPlace());
  // The sums of half of the elements, including the gaps.
  int64_t kept = 0;
  for (const FlatRange& range : gradients.layout().Shard(1)) {
    gradients.Range(range).fill_(1);
    kept += range.size();
  }
  EXPECT_EQ(2 * kept, gradients.layout().size());
  gradients.Zero();
  EXPECT_EQ(gradients.Range(gradients.layout().Shard(1).back()).sum().item<double>(), 0);
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
}  // namespace taopd::testing
