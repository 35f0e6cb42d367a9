// Sampling on CUDA against the CPU's weights, whose tokens it must reproduce, and against double
// loops.
#include "taopd/sampling/sample_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cpu/math/weight_row.h"
#include "tests/kernels/cuda/device_array.h"

namespace taopd::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// The weights' error (weight_row.h), and one rounding of a log-prob of size 20.
constexpr double kLogProbTolerance = 4e-6;

struct Sampled {
  std::vector<int32_t> ids, invalid;
  std::vector<float> log_probs, raw_log_probs;
};

// Rows with some NaN elements after each.
class Rows {
 public:
  Rows(int64_t num_rows, int64_t vocab_size, uint64_t seed)
      : num_(num_rows), vocab_size_(vocab_size), logits_(num_rows * Stride()) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0, 3);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t i = 0; i < Stride(); ++i) {
        logits_[row * Stride() + i] = i < vocab_size ? normal(random) : std::nanf("");
      }
      temperatures_.push_back(row % 4 == 0 ? 1.0f : 0.3f + 0.4f * static_cast<float>(row % 5));
      uniforms_.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    }
  }

  int64_t Stride() const { return vocab_size_ + 3; }
  float* row(int64_t i) { return &logits_[i * Stride()]; }
  float& temperature(int64_t i) { return temperatures_[i]; }
  double& uniform(int64_t i) { return uniforms_[i]; }

  Sampled Run() const {
    DeviceArray<float> logits(logits_), temperatures(temperatures_), log_probs(num_),
        raw_log_probs(num_);
    DeviceArray<double> uniforms(uniforms_);
    DeviceArray<int32_t> ids(num_), invalid(num_);
    DeviceContext context;
    context.workspace_bytes = SampleRowsWorkspaceBytes(num_, vocab_size_);
    DeviceArray<char> workspace(context.workspace_bytes);
    context.workspace = workspace.data();
    EXPECT_EQ(SampleRowsCuda(
                  {num_, vocab_size_, logits.data(), Stride(), temperatures.data(), uniforms.data(),
                   ids.data(), log_probs.data(), raw_log_probs.data(), invalid.data()},
                  context),
              "");
    return {ids.Values(), invalid.Values(), log_probs.Values(), raw_log_probs.Values()};
  }

 private:
  int64_t num_, vocab_size_;
  std::vector<float> logits_, temperatures_;
  std::vector<double> uniforms_;
};

// The weights of a row on the CPU, from which the engine's Sampler draws.
struct CpuWeights {
  std::vector<float> weights;
  std::vector<double> sums;  // sums of the blocks
  double total = 0;

  CpuWeights(const float* logits, int64_t n, float temperature)
      : weights(n), sums(cpu::NumWeightBlocks(n)) {
    cpu::WeightRowOf(cpu::WidestInstructionSet())
        .weights(logits, n, *std::max_element(logits, logits + n),
                 static_cast<float>(1.0 / static_cast<double>(temperature)), weights.data(),
                 sums.data());
    for (double sum : sums) total += sum;
  }
  // Returns the cumulative sum of all tokens before token id.
  double Before(int64_t id) const {
    double before = 0;
    const int64_t block = id / cpu::kWeightBlock;
    for (int64_t b = 0; b < block; ++b) before += sums[b];
    for (int64_t i = block * cpu::kWeightBlock; i < id; ++i) before += weights[i];
    return before;
  }
  int32_t Token(double uniform) const {
    double before = 0;
    size_t block = 0;
    while (before + sums[block] <= uniform * total) before += sums[block++];
    for (auto i = block * cpu::kWeightBlock; i < weights.size(); ++i) {
      before += weights[i];
      if (before > uniform * total) return static_cast<int32_t>(i);
    }
    return -1;
  }
};

double LogProb(const float* logits, int64_t n, double temperature, int32_t id) {
  const double max = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp((logits[i] - max) / temperature);
  return (logits[id] - max) / temperature - std::log(sum);
}

class CudaSampleRowsTest : public CudaTest {};

TEST_F(CudaSampleRowsTest, DrawsTheTokenOfTheCpusWeights) {
  for (int64_t vocab_size : {1, 15, 1024, 1025, 40000}) {
    constexpr int64_t kRows = 12;
    Rows rows(kRows, vocab_size, static_cast<uint64_t>(vocab_size));
    rows.uniform(2) = 0x1p-53;
    rows.uniform(3) = 1 - 0x1p-53;
    const Sampled sampled = rows.Run();
    for (int64_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(sampled.invalid[i], 0);
      if (i != 3) {  // rounding may lift the target to the total
        const CpuWeights cpu(rows.row(i), vocab_size, rows.temperature(i));
        EXPECT_EQ(sampled.ids[i], cpu.Token(rows.uniform(i)))
            << "row " << i << " of " << vocab_size;
      }
      EXPECT_NEAR(sampled.log_probs[i],
                  LogProb(rows.row(i), vocab_size, rows.temperature(i), sampled.ids[i]),
                  kLogProbTolerance);
      EXPECT_NEAR(sampled.raw_log_probs[i], LogProb(rows.row(i), vocab_size, 1, sampled.ids[i]),
                  kLogProbTolerance);
    }
  }
}

// The nearest uniforms on both sides of an edge between two tokens distinguish them only if all
// weights have the bits of the CPU's.
TEST_F(CudaSampleRowsTest, WeightsHaveTheBitsOfTheCpu) {
  constexpr int64_t kRows = 40, kSize = 5000;
  Rows rows(kRows, kSize, 4);
  std::vector<int32_t> expected;
  for (int64_t i = 0; i < kRows; ++i) {
    rows.temperature(i) = 0.7f + 0.013f * static_cast<float>(i / 2);
    const CpuWeights cpu(rows.row(i), kSize, rows.temperature(i));
    // A token with a high probability.
    const double edge = cpu.Before(cpu.Token(0.5)) / cpu.total;
    rows.uniform(i) = i % 2 == 0 ? edge * (1 + 1e-13) : edge * (1 - 1e-13);
    expected.push_back(cpu.Token(rows.uniform(i)));
  }
  EXPECT_EQ(rows.Run().ids, expected);
}

// An edge belongs to the token after it, also at the edge of a block of weights.
TEST_F(CudaSampleRowsTest, EdgesBelongToTheNextToken) {
  Rows rows(3, 2048, 5);
  for (int64_t i = 0; i < 3; ++i) {
    std::fill_n(rows.row(i), 2048, 1.5f);
    rows.temperature(i) = 1;
    rows.uniform(i) = 0.25 * static_cast<double>(i + 1);
  }
  EXPECT_EQ(rows.Run().ids, (std::vector<int32_t>{512, 1024, 1536}));
}

// Every token is drawn for the fraction of uniforms that is its probability, also at the edges of
// the cumulative sum.
TEST_F(CudaSampleRowsTest, InvertsTheCumulativeSum) {
  constexpr int64_t kSize = 6;
  const float weights[kSize] = {1, 0, 2, 4, 0, 1};  // the sum is 8; powers of two are exact
  constexpr int64_t kRows = 64;
  Rows rows(kRows, kSize, 1);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t v = 0; v < kSize; ++v) {
      rows.row(i)[v] = weights[v] == 0 ? -kInfinity : std::log(weights[v]);
    }
    rows.temperature(i) = 1;
    rows.uniform(i) = (static_cast<double>(i) + 0.5) / kRows;
  }
  const Sampled sampled = rows.Run();
  for (int64_t i = 0; i < kRows; ++i) {
    EXPECT_EQ(sampled.ids[i], i < 8 ? 0 : i < 24 ? 2 : i < 56 ? 3 : 5) << i;
  }
}

TEST_F(CudaSampleRowsTest, TemperatureZeroTakesTheLowestOfTheLargest) {
  constexpr int64_t kSize = 3000;
  Rows rows(3, kSize, 2);
  for (int64_t i = 0; i < 3; ++i) rows.temperature(i) = 0;
  rows.row(0)[700] = rows.row(0)[2500] = 50;
  rows.row(1)[2999] = 50;
  for (int64_t v = 0; v < kSize; ++v) rows.row(2)[v] = v == 5 ? 0.0f : v == 3 ? -0.0f : -1.0f;
  const Sampled sampled = rows.Run();
  EXPECT_EQ(sampled.ids, (std::vector<int32_t>{700, 2999, 3}));
  for (int64_t i = 0; i < 3; ++i) {
    const double expected = LogProb(rows.row(i), kSize, 1, sampled.ids[i]);
    EXPECT_NEAR(sampled.log_probs[i], expected, kLogProbTolerance);
    EXPECT_NEAR(sampled.raw_log_probs[i], expected, kLogProbTolerance);
  }
}

TEST_F(CudaSampleRowsTest, RowsThatAreNotFiniteAreMarked) {
  constexpr int64_t kSize = 2000;
  Rows rows(5, kSize, 3);
  const Sampled before = rows.Run();
  rows.row(1)[1999] = std::nanf("");
  rows.row(2)[0] = kInfinity;
  std::fill_n(rows.row(3), kSize, -kInfinity);
  rows.row(4)[7] = -kInfinity;  // as with a mask
  const Sampled sampled = rows.Run();
  EXPECT_EQ(sampled.invalid, (std::vector<int32_t>{0, 1, 1, 1, 0}));
  EXPECT_EQ(sampled.ids[0], before.ids[0]);
  EXPECT_EQ(sampled.log_probs[0], before.log_probs[0]);
  for (int64_t i : {1, 2, 3}) {
    EXPECT_EQ(sampled.ids[i], -1);
    EXPECT_TRUE(std::isnan(sampled.log_probs[i]));
    EXPECT_TRUE(std::isnan(sampled.raw_log_probs[i]));
  }
}

TEST_F(CudaSampleRowsTest, NamesWrongArguments) {
  DeviceArray<float> floats(40);
  DeviceArray<double> doubles(4);
  DeviceArray<int32_t> ints(4);
  SampleRows p = {2,           20,      floats.data(), 20,         floats.data(), doubles.data(),
                  ints.data(), nullptr, nullptr,       ints.data()};
  EXPECT_EQ(SampleRowsCuda(p, {}), "the workspace has 0 bytes, 32 are needed");
  p.logits_stride = 19;
  EXPECT_EQ(SampleRowsCuda(p, {}), "logits_stride is 19, must be at least vocab_size 20");
  p.vocab_size = 0;
  EXPECT_EQ(SampleRowsCuda(p, {}), "vocab_size is 0, must be in [1, 2^31)");
  p = {2,       20,          floats.data(), 20,      floats.data(),
       nullptr, ints.data(), nullptr,       nullptr, ints.data()};
  EXPECT_EQ(SampleRowsCuda(p, {}), "logits, temperatures, uniforms, ids and invalid are needed");
}

}  // namespace
}  // namespace taopd::testing
