// Sampling by LibTorch's operations against plain loops in double.
#include "kernels/torch/composed/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/torch/sampling/row_sampling.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/support/scoped_kernels.h"

namespace taopd::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// One rounding to float32 of a log-prob of size 20.
constexpr double kLogProbTolerance = 2e-6;

int32_t TokenOf(const float* logits, int64_t size, double temperature, double uniform) {
  double largest = logits[0];
  for (int64_t v = 0; v < size; ++v) largest = std::max<double>(largest, logits[v]);
  double total = 0;
  for (int64_t v = 0; v < size; ++v) total += std::exp((logits[v] - largest) / temperature);
  double sum = 0;
  for (int64_t v = 0; v < size; ++v) {
    sum += std::exp((logits[v] - largest) / temperature);
    if (sum > uniform * total) return static_cast<int32_t>(v);
  }
  return -1;
}

std::vector<DrawnRow> Draw(const at::Tensor& logits, const std::vector<RowToDraw>& rows) {
  const ScopedKernels kernels(KernelChoice::Composed());
  const RowSampler sampler = RowSamplerOn(at::kCPU);
  EXPECT_TRUE(sampler.defined());
  return DrawRows(logits, rows, sampler);
}

TEST(ComposedSampling, TakesTheTokenWhereTheCumulativeSumPasses) {
  // Many rows of a large vocabulary, so that they come in several chunks.
  for (const int64_t size : {1, 2, 999, 70001}) {
    const at::Tensor logits = RandomTensor({97, size}, 4) * 3;
    std::vector<RowToDraw> rows;
    for (int64_t i = 0; i < 97; ++i) {
      rows.push_back({96 - i, 0.5f + 0.25f * static_cast<float>(i % 4), (i + 0.5) / 97});
    }
    const std::vector<DrawnRow> drawn = Draw(logits, rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor row = logits[rows[i].row];
      const double temperature = rows[i].temperature;
      const int32_t id = TokenOf(row.const_data_ptr<float>(), size, temperature, rows[i].uniform);
      ASSERT_EQ(drawn[i].id, id) << "V " << size << ", row " << i;
      const at::Tensor wide = row.to(at::kDouble);
      EXPECT_NEAR(drawn[i].log_prob, (wide / temperature).log_softmax(0)[id].item<double>(),
                  kLogProbTolerance);
      EXPECT_NEAR(drawn[i].raw_log_prob, wide.log_softmax(0)[id].item<double>(), kLogProbTolerance);
      EXPECT_FALSE(drawn[i].invalid);
    }
  }
}

TEST(ComposedSampling, TemperatureZeroTakesTheLowestOfTheLargest) {
  const at::Tensor logits = at::tensor({1.0f, 5.0f, -kInfinity, 5.0f}).unsqueeze(0);
  const std::vector<DrawnRow> drawn = Draw(logits, {{0, 0, 0.9}});
  EXPECT_EQ(drawn[0].id, 1);
  EXPECT_NEAR(drawn[0].log_prob, logits[0].to(at::kDouble).log_softmax(0)[1].item<double>(),
              kLogProbTolerance);
  EXPECT_EQ(drawn[0].log_prob, drawn[0].raw_log_prob);
}

// The largest uniform number below 1 must not lead to a token of no weight.
TEST(ComposedSampling, TheLastTokenHasAWeight) {
  const at::Tensor logits = at::tensor({0.0f, 1.0f, -kInfinity, -kInfinity}).unsqueeze(0);
  EXPECT_EQ(Draw(logits, {{0, 1, std::nextafter(1.0, 0.0)}})[0].id, 1);
}

TEST(ComposedSampling, InvalidRowsAreMarked) {
  const at::Tensor logits = RandomTensor({4, 6}, 9);
  logits[0][3] = std::nanf("");
  logits[1][0] = kInfinity;
  logits[2].fill_(-kInfinity);
  const std::vector<DrawnRow> drawn =
      Draw(logits, {{0, 1, 0.5}, {1, 0, 0.5}, {2, 1, 0.5}, {3, 1, 0.5}});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(drawn[i].invalid) << i;
    EXPECT_EQ(drawn[i].id, -1) << i;
    EXPECT_TRUE(std::isnan(drawn[i].log_prob) && std::isnan(drawn[i].raw_log_prob)) << i;
  }
  EXPECT_FALSE(drawn[3].invalid);
}

}  // namespace
}  // namespace taopd::testing
