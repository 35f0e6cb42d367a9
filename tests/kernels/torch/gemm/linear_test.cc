// The product with widened weights against the same product in float32, and its gradients against
// those of at::linear.
#include "kernels/torch/gemm/linear.h"

#include <gtest/gtest.h>

#include <string>

namespace taopd {
namespace {

// Set for one test and put back.
class Widening {
 public:
  explicit Widening(bool widens) : before_(WidensOnCpu(at::kBFloat16)) {
    SetWidensOnCpuForTesting(widens);
  }
  ~Widening() { SetWidensOnCpuForTesting(before_); }

 private:
  const bool before_;
};

at::Tensor Normal(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::kFloat).to(dtype);
}

double MaxAbs(const at::Tensor& x) { return x.to(at::kFloat).abs().max().item<double>(); }

// Columns of x, rows of the weight.
const std::vector<std::pair<int64_t, int64_t>> kSizes = {{1, 1}, {7, 5}, {64, 1100}, {3000, 37}};

class LinearTest : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(LinearTest, RoundsTheFloat32ResultOnce) {
  const Widening widening(true);
  at::manual_seed(1);
  // Sizes around the blocks, one row, no row, and enough rows for several threads.
  for (const int64_t rows : {0, 1, 3, 4, 33}) {
    for (const auto& [in, out] : kSizes) {
      const at::Tensor x = Normal({rows, in}, GetParam()), weight = Normal({out, in}, GetParam());
      const at::Tensor bias = Normal({out}, GetParam());
      const at::Tensor expected =
          at::linear(x.to(at::kFloat), weight.to(at::kFloat), bias.to(at::kFloat)).to(GetParam());
      const at::Tensor actual = Linear(x, weight, bias);
      ASSERT_EQ(actual.sizes(), expected.sizes());
      ASSERT_EQ(actual.scalar_type(), GetParam());
      if (rows == 0) continue;
      // Sums in another order may fall to the other side of a rounding: one unit in the last place.
      const double unit = GetParam() == at::kBFloat16 ? 1.0 / 128 : 1.0 / 1024;
      EXPECT_LE(MaxAbs(actual - expected), unit * MaxAbs(expected))
          << rows << " " << in << " " << out;
      EXPECT_LE((actual != expected).to(at::kFloat).mean().item<double>(), 0.02);
    }
  }
}

TEST_P(LinearTest, TakesAnyShapeAndStride) {
  const Widening widening(true);
  const at::Tensor x = Normal({2, 3, 16}, GetParam()).transpose(0, 1);
  const at::Tensor weight = Normal({16, 8}, GetParam()).t();
  const at::Tensor expected =
      at::linear(x.to(at::kFloat), weight.to(at::kFloat)).to(GetParam()).to(at::kFloat);
  EXPECT_LE(MaxAbs(Linear(x, weight, at::Tensor()) - expected), 0.1);
  EXPECT_EQ(Linear(x, weight, at::Tensor()).sizes(), at::IntArrayRef({3, 2, 8}));
  EXPECT_ANY_THROW(Linear(x, Normal({8, 15}, GetParam()), at::Tensor()));
  EXPECT_ANY_THROW(Linear(x, Normal({8, 16}, at::kFloat), at::Tensor()));
}

TEST_P(LinearTest, WrongShapesAreRefusedByName) {
  const Widening widening(true);
  const at::Tensor x = Normal({2, 16}, GetParam()), weight = Normal({8, 16}, GetParam());
  const auto expect_refused = [&](const at::Tensor& w, const at::Tensor& b, const char* part) {
    try {
      Linear(x, w, b);
      ADD_FAILURE() << "accepted; expected: " << part;
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  expect_refused(Normal({8, 16, 2}, GetParam()), {}, "weight has shape [8, 16, 2]");
  expect_refused(weight, Normal({1}, GetParam()), "bias has shape [1] but weight has 8 rows");
  expect_refused(weight, Normal({2, 8}, GetParam()), "bias has shape [2, 8]");
  EXPECT_ANY_THROW(Linear(at::zeros({}, GetParam()), weight, {}));
  EXPECT_EQ(Linear(x.narrow(0, 0, 0), weight, {}).sizes(), at::IntArrayRef({0, 8}));
}

TEST_P(LinearTest, GradientsAreThoseOfLinear) {
  at::manual_seed(2);
  const at::Tensor dy = Normal({5, 6}, GetParam());
  std::vector<std::vector<at::Tensor>> gradients;
  const at::Tensor x0 = Normal({5, 9}, GetParam()), w0 = Normal({6, 9}, GetParam()),
                   b0 = Normal({6}, GetParam());
  for (const bool widens : {true, false}) {
    const Widening widening(widens);
    const at::ScalarType dtype = widens ? GetParam() : at::kFloat;
    const auto leaf = [&](const at::Tensor& t) {
      return t.to(dtype, false, true).set_requires_grad(true);
    };
    const at::Tensor x = leaf(x0), weight = leaf(w0), bias = leaf(b0);
    (Linear(x, weight, bias) * dy.to(dtype)).sum().backward();
    gradients.push_back({x.grad(), weight.grad(), bias.grad()});
  }
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(gradients[0][i].scalar_type(), GetParam());
    EXPECT_LE(MaxAbs(gradients[0][i].to(at::kFloat) - gradients[1][i]),
              0.01 * MaxAbs(gradients[1][i]));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest, ::testing::Values(at::kBFloat16, at::kHalf));

TEST(Linear, Float32IsAtLinear) {
  const at::Tensor x = Normal({3, 4}, at::kFloat), weight = Normal({5, 4}, at::kFloat);
  EXPECT_TRUE(at::equal(Linear(x, weight, at::Tensor()), at::linear(x, weight)));
}

}  // namespace
}  // namespace taopd
