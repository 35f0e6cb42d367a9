// A chunk of the student's rows, block by block, against the plain float64 row
// (taopd/head/dense_row.h).
#include "kernels/cpu/head/student_chunk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "taopd/head/dense_row.h"

namespace taopd::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kBlockSize = 48;

// For float32 exponentials and their sums, relative to the largest number of a row.
constexpr double kFloatTolerance = 5e-6;
// exps are rounded to 8 bits, each element by up to half a unit in the last place.
constexpr double kBfloat16Tolerance = 1.0 / 256;

struct Case {
  int64_t num_rows = 0, vocab_size = 0;
  int32_t k = 0;
  std::vector<float> logits_CV;
  std::vector<int32_t> support_ids, sampled_ids;
  std::vector<float> teacher_log_probs, teacher_sampled, teacher_entropy, advantages, weights;
  StudentChunkOptions options;
};

Case MakeCase(std::string_view objective, int64_t num_rows, int64_t vocab_size, int32_t k,
              uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, 2);
  Case c = {.num_rows = num_rows, .vocab_size = vocab_size};
  c.options.objective = FindObjective(objective).value();
  if (TraitsOf(c.options.objective) & kNeedsFullVocabulary) k = static_cast<int32_t>(vocab_size);
  c.k = k;
  for (int64_t i = 0; i < num_rows * vocab_size; ++i) c.logits_CV.push_back(normal(random));
  std::vector<int32_t> ids(vocab_size);
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t n = 0; n < num_rows; ++n) {
    std::shuffle(ids.begin(), ids.end(), random);
    // Every third row has a smaller support.
    const int32_t size = k == vocab_size || n % 3 != 2 ? k : std::max(1, k - 2);
    for (int32_t j = 0; j < k; ++j) {
      c.support_ids.push_back(j < size ? ids[j] : -1);
      c.teacher_log_probs.push_back(std::log(0.9f / static_cast<float>(k + j)));
    }
    c.sampled_ids.push_back(n % 2 == 0 ? ids[0] : ids[vocab_size - 1]);
    c.teacher_sampled.push_back(-2);
    c.teacher_entropy.push_back(1.5f);
    c.advantages.push_back(n % 2 == 0 ? 0.75f : -1.25f);
    c.weights.push_back(n % 4 == 3 ? 0 : 0.25f * static_cast<float>(n + 1));
  }
  c.options.vocab_size = vocab_size;
  c.options.block_size = kBlockSize;
  c.options.temperature = 0.8;
  c.options.top_k_metrics = true;
  return c;
}

struct Results {
  RowStatus status = RowStatus::kOk;
  std::vector<float> loss, metrics, gradient_CV;
};

// `order` is that of the blocks; num_threads > 1 runs blocks and rows at the same time.
Results RunChunk(const Case& c, const std::vector<int64_t>& order = {}, int num_threads = 1) {
  const int64_t v_size = c.vocab_size;
  std::vector<float> exps(c.num_rows * v_size);  // enough for either type
  StudentChunk chunk(c.options, exps.data());
  const StudentTargets targets = {.support_ids_Nk = c.support_ids.data(),
                                  .teacher_log_probs_Nk = c.teacher_log_probs.data(),
                                  .k = c.k,
                                  .sampled_ids_N = c.sampled_ids.data(),
                                  .teacher_sampled_log_probs_N = c.teacher_sampled.data(),
                                  .teacher_entropy_N = c.teacher_entropy.data(),
                                  .advantages_N = c.advantages.data(),
                                  .row_weights_N = c.weights.data()};
  Results results = {.status = chunk.Start(targets, c.num_rows)};
  if (results.status != RowStatus::kOk) return results;

  const auto parallel = [&](int64_t num, const auto& body) {
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([&, t] {
        StudentChunkScratch scratch;
        for (int64_t i = t; i < num; i += num_threads) body(i, &scratch);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  const int64_t num_blocks = (v_size + kBlockSize - 1) / kBlockSize;
  const int64_t stride = (c.num_rows + 15) / 16 * 16;
  const auto logits_of = [&](int64_t block) {
    std::vector<float> logits(kBlockSize * stride, 0);
    const int64_t end = std::min(v_size, (block + 1) * kBlockSize);
    for (int64_t v = block * kBlockSize; v < end; ++v) {
      for (int64_t n = 0; n < c.num_rows; ++n) {
        logits[(v - block * kBlockSize) * stride + n] = c.logits_CV[n * v_size + v];
      }
    }
    return logits;
  };
  parallel(num_blocks, [&](int64_t i, StudentChunkScratch* scratch) {
    const int64_t block = order.empty() ? i : order[i];
    chunk.AddBlock(block, logits_of(block).data(), stride, scratch);
  });
  results.loss.resize(c.num_rows);
  results.metrics.resize(c.num_rows * kNumHeadMetrics);
  parallel(c.num_rows, [&](int64_t n, StudentChunkScratch* scratch) {
    chunk.FinishRows(n, n + 1, scratch, &results.loss[n], &results.metrics[n * kNumHeadMetrics]);
  });

  // The exps can be made again.
  parallel(c.options.products ? num_blocks : 0, [&](int64_t block, StudentChunkScratch* scratch) {
    const int64_t first = block * kBlockSize, num = std::min(kBlockSize, v_size - first);
    const int64_t bytes = c.num_rows * (c.options.dtype == DataType::kBFloat16 ? 2 : 4);
    std::vector<char> made(num * bytes, 7);
    chunk.MakeExps(block, logits_of(block).data(), stride, scratch, made.data());
    EXPECT_EQ(std::memcmp(made.data(), reinterpret_cast<const char*>(exps.data()) + first * bytes,
                          made.size()),
              0);
  });

  results.gradient_CV.assign(c.num_rows * v_size, 0);
  if (c.options.products) {
    const LogitGradient gradient = chunk.gradient();
    for (int64_t v = 0; v < v_size; ++v) {
      for (int64_t n = 0; n < c.num_rows; ++n) {
        const int64_t at = v * c.num_rows + n;
        const float e =
            gradient.dtype == DataType::kFloat32
                ? static_cast<const float*>(gradient.exps_VC)[at]
                : std::bit_cast<float>(uint32_t{static_cast<const uint16_t*>(gradient.exps_VC)[at]}
                                       << 16);
        const float factor = gradient.factors_BC[v / kBlockSize * c.num_rows + n];
        int exponent = 0;
        EXPECT_TRUE(factor == 0 || std::isnan(factor) || std::frexp(factor, &exponent) == 0.5f);
        results.gradient_CV[n * v_size + v] = gradient.row_scale_C[n] * (factor * e);
      }
    }
  } else {
    const LogitEntries entries = chunk.entries();
    for (int64_t i = 0; i < entries.num_rows * entries.per_row; ++i) {
      if (entries.ids_CE[i] < 0) continue;
      results.gradient_CV[i / entries.per_row * v_size + entries.ids_CE[i]] += entries.values_CE[i];
    }
  }
  return results;
}

void ExpectMatchesDenseRows(const Case& c, const std::string& what) {
  const Results actual = RunChunk(c);
  ASSERT_EQ(actual.status, RowStatus::kOk) << what;
  const double scale = static_cast<float>(1 / c.options.temperature);
  for (int64_t n = 0; n < c.num_rows; ++n) {
    DenseRow row;
    for (int64_t v = 0; v < c.vocab_size; ++v) {
      row.logits.push_back(c.logits_CV[n * c.vocab_size + v] * scale);
    }
    for (int64_t j = n * c.k; j < (n + 1) * c.k && c.support_ids[j] >= 0; ++j) {
      row.support_ids.push_back(c.support_ids[j]);
      row.teacher_log_probs.push_back(c.teacher_log_probs[j]);
    }
    row.sampled_id = c.sampled_ids[n];
    row.teacher_sampled_log_prob = c.teacher_sampled[n];
    row.teacher_entropy = c.teacher_entropy[n];
    row.advantage = c.advantages[n];
    DenseRowResult expected;
    ASSERT_EQ(EvaluateDenseRow(c.options.objective, row, &expected), RowStatus::kOk);
    const std::string where = what + ", row " + std::to_string(n);
    EXPECT_NEAR(actual.loss[n], expected.loss,
                kFloatTolerance * std::max(1.0, std::abs(expected.loss)))
        << where;
    for (int m = 0; m < kNumHeadMetrics; ++m) {
      const double value = expected.metrics[m];
      const float metric = actual.metrics[n * kNumHeadMetrics + m];
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(metric)) << where << ", metric " << m;
      } else {
        EXPECT_NEAR(metric, value, kFloatTolerance * std::max(1.0, std::abs(value)))
            << where << ", metric " << m;
      }
    }
    double largest = 1e-3;  // a smaller number is the difference of nearly equal logarithms
    for (double d : expected.gradient) largest = std::max(largest, std::abs(d));
    const double unit = scale * c.weights[n];
    for (int64_t v = 0; v < c.vocab_size; ++v) {
      const double want = expected.gradient[v] * unit;
      const double rounding =
          c.options.dtype == DataType::kBFloat16 && c.options.products ? kBfloat16Tolerance : 0;
      EXPECT_NEAR(actual.gradient_CV[n * c.vocab_size + v], want,
                  kFloatTolerance * largest * unit + rounding * std::abs(want))
          << where << ", token " << v;
    }
  }
}

TEST(StudentChunk, MatchesTheDenseRowForEveryObjective) {
  uint64_t seed = 0;
  for (const ObjectiveInfo& info : kObjectives) {
    for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
      for (const auto& [num_rows, vocab_size, k] :
           {std::tuple{1, 1, 1}, std::tuple{5, 47, 3}, std::tuple{17, 97, 4},
            std::tuple{4, 300, 50}}) {
        Case c = MakeCase(info.name, num_rows, vocab_size, k, ++seed);
        c.options.dtype = dtype;
        // Objectives without a dense gradient run both ways.
        for (const bool products : {true, false}) {
          if (!products && HasDenseGradient(c.options.objective)) continue;
          c.options.products = products;
          ExpectMatchesDenseRows(c, std::string(info.name) + ", V " + std::to_string(vocab_size) +
                                        ", seed " + std::to_string(seed));
        }
      }
    }
  }
}

// Blocks whose references are hundreds of nats apart, blocks that the support empties, a support in
// a block far below the rest, and masked tokens: nothing overflows or is lost.
TEST(StudentChunk, BlocksFarApart) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    for (const char* objective : {"ta_opd", "sc_ta_opd", "mopd", "sampled_token"}) {
      for (const float distance : {30.0f, 80.0f, 400.0f, 1e4f}) {
        Case c = MakeCase(objective, 4, 5 * kBlockSize, 6, 7);
        c.options.dtype = dtype;
        for (int64_t n = 0; n < 4; ++n) {
          float* row = c.logits_CV.data() + n * c.vocab_size;
          for (int64_t v = 0; v < c.vocab_size; ++v) {
            row[v] += distance * static_cast<float>((v / kBlockSize + n) % 5);
            if (n == 1 && v / kBlockSize == 2) row[v] = -kInf;
            if (n == 2) row[v] = -row[v] - 1e3f;
          }
          c.support_ids[n * c.k] =
              static_cast<int32_t>((5 - n) % 5 * kBlockSize);  // the lowest block
          for (int32_t j = 1; j < c.k; ++j) {
            c.support_ids[n * c.k + j] = static_cast<int32_t>((7 * j + 50 * n) % c.vocab_size) + 1;
          }
        }
        ExpectMatchesDenseRows(c, std::string(objective) + ", " + std::to_string(distance));
      }
    }
  }
}

// The whole block belongs to the support.
TEST(StudentChunk, BlockWithoutARest) {
  for (const char* objective : {"ta_opd", "forward_kl_tail", "normalized"}) {
    Case c = MakeCase(objective, 3, 2 * kBlockSize + 5, kBlockSize, 9);
    for (int64_t n = 0; n < 3; ++n) {
      for (int32_t j = 0; j < c.k; ++j)
        c.support_ids[n * c.k + j] = j + static_cast<int32_t>(kBlockSize);
      c.sampled_ids[n] = static_cast<int32_t>(n * kBlockSize);
    }
    ExpectMatchesDenseRows(c, objective);
  }
}

TEST(StudentChunk, OrderOfBlocksAndThreadsDoNotChangeABit) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kBFloat16}) {
    Case c = MakeCase("sc_ta_opd", 37, 20 * kBlockSize + 11, 9, 11);
    // The logits are equal: which of them are the student's top-k must not depend on the order
    // either.
    for (std::size_t i = 0; i < c.logits_CV.size(); ++i) {
      float& logit = c.logits_CV[i];
      logit = i / c.vocab_size % 2 == 0 ? std::round(logit) : static_cast<float>(logit > 0);
    }
    c.options.dtype = dtype;
    const Results expected = RunChunk(c);
    std::vector<int64_t> order(21);
    std::iota(order.rbegin(), order.rend(), 0);
    for (const int num_threads : {1, 4}) {
      const Results actual = RunChunk(c, order, num_threads);
      EXPECT_EQ(actual.loss, expected.loss);
      EXPECT_EQ(actual.metrics, expected.metrics);
      EXPECT_EQ(actual.gradient_CV, expected.gradient_CV);
    }
  }
}

TEST(StudentChunk, NumbersThatAreNotFiniteShowInTheLoss) {
  for (const float bad : {kInf, std::numeric_limits<float>::quiet_NaN(), 1e12f}) {
    Case c = MakeCase("ta_opd", 3, 100, 4, 13);
    for (int64_t v = 0; v < 100; ++v) {
      const bool in_support = std::find(c.support_ids.begin() + 4, c.support_ids.begin() + 8, v) !=
                              c.support_ids.begin() + 8;
      if (!in_support) {
        c.logits_CV[100 + v] = bad;
        break;
      }
    }
    const Results results = RunChunk(c);
    EXPECT_TRUE(std::isfinite(results.loss[0])) << bad;
    EXPECT_TRUE(std::isfinite(results.loss[2])) << bad;
    EXPECT_TRUE(std::isnan(results.loss[1])) << bad;
  }
}

TEST(StudentChunk, BadSupportsAreFoundBeforeAnythingIsComputed) {
  const auto status = [](std::string_view objective, std::vector<int32_t> ids) {
    Case c = MakeCase(objective, 1, 100, 4, 15);
    std::copy(ids.begin(), ids.end(), c.support_ids.begin());
    return RunChunk(c).status;
  };
  EXPECT_EQ(status("ta_opd", {1, 2, 3, -1}), RowStatus::kOk);
  EXPECT_EQ(status("ta_opd", {1, 2, 3, 1}), RowStatus::kDuplicateSupportId);
  EXPECT_EQ(status("ta_opd", {1, -1, 3, 4}), RowStatus::kIdAfterPadding);
  EXPECT_EQ(status("ta_opd", {-1, -1, -1, -1}), RowStatus::kEmptySupport);
  EXPECT_EQ(status("full", {99, 99, 99, 99}), RowStatus::kDuplicateSupportId);
  std::vector<int32_t> incomplete(100, -1);
  EXPECT_EQ(status("full", incomplete), RowStatus::kEmptySupport);
  incomplete[0] = 5;
  EXPECT_EQ(status("full", incomplete), RowStatus::kIncompleteSupport);
}

TEST(StudentChunk, CountsItsMemory) {
  StudentChunkOptions options = {.objective = FindObjective("ta_opd").value(),
                                 .vocab_size = 151936,
                                 .block_size = 144,
                                 .dtype = DataType::kBFloat16};
  const int64_t bytes = StudentChunk::BytesPerRow(options, 16);
  EXPECT_GT(bytes, 2 * 151936);
  EXPECT_LT(bytes, 2 * 151936 * 11 / 10);  // the rest is small compared with exps
  options.top_k_metrics = true;
  EXPECT_GT(StudentChunk::BytesPerRow(options, 1024), bytes + 1024 * 16);
}

TEST(LargestLogits, KeepsTheLargestWithTiesByLowestId) {
  std::mt19937_64 random(3);
  for (const int32_t size : {0, 1, 5, 40, 300}) {
    LargestLogits largest;
    std::vector<LargestLogits::Candidate> all;
    largest.Reset(size);
    constexpr int kStride = 3;
    std::vector<float> column(1000 * kStride, 1000);
    for (int32_t id = 0; id < 1000; ++id) {
      all.push_back({static_cast<float>(random() % 50), id});
      column[id * kStride] = all.back().logit;
    }
    std::vector<std::pair<int32_t, int32_t>> parts;  // first, number
    for (int32_t first = 0; first < 1000;) {
      const auto num = std::min<int32_t>(1000 - first, static_cast<int32_t>(random() % 100));
      parts.emplace_back(first, num);
      first += num;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    LargestLogits::Scratch scratch;
    for (const auto& [first, num] : parts) {
      largest.OfferColumn(&column[first * kStride], kStride, num, first, &scratch);
    }
    const std::vector<float> no_numbers = {-kInf, std::nanf("")};
    largest.OfferColumn(no_numbers.data(), 1, 2, 1001, &scratch);
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
      return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
    });
    const auto& sorted = largest.Sorted();
    ASSERT_EQ(sorted.size(), static_cast<std::size_t>(size));
    for (int32_t i = 0; i < size; ++i) {
      EXPECT_EQ(sorted[i].id, all[i].id) << size;
      EXPECT_EQ(sorted[i].logit, all[i].logit) << size;
    }
  }
}

}  // namespace
}  // namespace taopd::cpu
