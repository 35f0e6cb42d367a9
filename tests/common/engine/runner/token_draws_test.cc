// Compares tokens drawn by the CUDA kernel's source on the emulated device, and from candidates of
// rows, with those that the host draws from whole rows.
#include "common/engine/runner/token_draws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/base/random.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using ::testing::FloatNear;
using ::testing::Pointwise;

constexpr int64_t kVocabSize = 3000;
// The error of the weights (kernels/cpu/math/weight_row.h) and one rounding of a log-prob of size
// 20.
constexpr double kLogProbTolerance = 4e-6;

int64_t num_device_rows = 0;  // rows that the kernel computed

RowSampler EmulatedSampler() {
  return {[](const SampleRows& problem, const DeviceContext& context) {
            num_device_rows += problem.num_rows;
            return SampleRowsCuda(problem, context);
          },
          SampleRowsWorkspaceBytes};
}

std::unique_ptr<Sequence> MakeSequence(const SamplingParams& params) {
  InferenceRequest request = {.token_ids = {1, 2, 3}, .sampling = params};
  return std::make_unique<Sequence>(RequestHandle{1}, std::move(request), nullptr,
                                    std::vector<int32_t>());
}

at::Tensor RandomLogits(int64_t num_rows) {
  at::Tensor logits = at::empty({num_rows, kVocabSize});
  RandomStream random(5);
  for (int64_t i = 0; i < logits.numel(); ++i) {
    logits.data_ptr<float>()[i] = static_cast<float>(3.0 * random.NextNormal());
  }
  return logits;
}

// Sequences of all kinds. The kernel draws for every second one, candidates suffice for most of the
// others, and those with top_p need whole rows.
std::vector<std::unique_ptr<Sequence>> MixedSequences(int64_t num) {
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int64_t i = 0; i < num; ++i) {
    SamplingParams params = {
        .temperature = i % 3 == 0 ? 0.0f : 0.4f + 0.3f * static_cast<float>(i % 5),
        .seed = static_cast<uint64_t>(100 + i),
        .raw_log_probs = i % 2 == 0};
    if (i % 8 == 1) {
      params.top_k = 20;
      params.temperature = 1.0f;
    } else if (i % 8 == 5) {
      params.top_p = 0.95f;
      params.temperature = 2.0f;
    } else if (i % 8 == 3) {
      params.num_log_probs = 2;
    } else if (i % 8 == 7) {
      params.logit_bias = {{7, 5.0f}};
    }
    sequences.push_back(MakeSequence(params));
  }
  return sequences;
}

TEST(TokenDraws, TheDeviceAndTheHostDrawTheSameTokens) {
  const auto sequences = MixedSequences(40);
  const at::Tensor logits = RandomLogits(20);
  std::vector<DrawTask> tasks;
  // Two sequences share each row.
  for (int64_t i = 0; i < 40; ++i) tasks.push_back({sequences[i].get(), i % 20});
  num_device_rows = 0;
  const std::vector<Draw> host = DrawTokens(logits, RowSampler(), tasks);
  EXPECT_EQ(num_device_rows, 0);
  const std::vector<Draw> device = DrawTokens(logits, EmulatedSampler(), tasks);
  EXPECT_EQ(num_device_rows, 20);  // the others have top_k, top_p, alternatives or a bias
  for (size_t i = 0; i < tasks.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_OK(host[i].token.status());
    ASSERT_OK(device[i].token.status());
    EXPECT_EQ(device[i].token->id, host[i].token->id);
    EXPECT_NEAR(device[i].token->log_prob, host[i].token->log_prob, kLogProbTolerance);
    EXPECT_EQ(std::isnan(device[i].token->raw_log_prob), i % 2 != 0);
    if (i % 2 == 0) {
      EXPECT_NEAR(device[i].token->raw_log_prob, host[i].token->raw_log_prob, kLogProbTolerance);
    }
    EXPECT_EQ(device[i].top_ids, host[i].top_ids);
    EXPECT_THAT(device[i].top_log_probs,
                Pointwise(FloatNear(kLogProbTolerance), host[i].top_log_probs));
  }
}

// Forbids all ids but the last ones.
class LastIdsOnly final : public LogitMask {
 public:
  static constexpr int64_t kNumForbiddenWords = 45;  // 2,880 ids
  absl::StatusOr<bool> Mask(std::span<const int32_t>, std::span<uint64_t> allowed_bits) override {
    std::fill_n(allowed_bits.begin(), kNumForbiddenWords, 0);
    return true;
  }
};

TEST(TokenDraws, AMaskIsAppliedToTheWholeRow) {
  const SamplingParams params = {.mask = std::make_shared<LastIdsOnly>()};
  const auto sequence = MakeSequence(params);
  const at::Tensor logits = RandomLogits(1);
  const std::vector<Draw> host = DrawTokens(logits, RowSampler(), {{sequence.get(), 0}});
  const std::vector<Draw> device = DrawTokens(logits, EmulatedSampler(), {{sequence.get(), 0}});
  ASSERT_OK(device[0].token.status());
  EXPECT_EQ(device[0].token->id, host[0].token->id);
  EXPECT_GE(device[0].token->id, 64 * LastIdsOnly::kNumForbiddenWords);
}

TEST(TokenDraws, ATokenDependsOnItsStep) {
  const auto sequence = MakeSequence(SamplingParams());
  const at::Tensor logits = RandomLogits(1);
  std::vector<int32_t> ids;
  for (int step = 0; step < 3; ++step) {
    const std::vector<Draw> host = DrawTokens(logits, RowSampler(), {{sequence.get(), 0}});
    const std::vector<Draw> device = DrawTokens(logits, EmulatedSampler(), {{sequence.get(), 0}});
    ASSERT_OK(device[0].token.status());
    EXPECT_EQ(device[0].token->id, host[0].token->id) << "step " << step;
    ids.push_back(device[0].token->id);
    sequence->Append(*device[0].token);
  }
  EXPECT_NE(ids[0], ids[1]);  // with 3,000 ids they are equal only by chance
}

TEST(TokenDraws, ARowThatIsNotFiniteFailsItsSequenceAlone) {
  const auto sequences = MixedSequences(8);
  at::Tensor logits = RandomLogits(8);
  logits[2][5] = std::numeric_limits<float>::quiet_NaN();
  logits[5][5] = std::numeric_limits<float>::infinity();
  std::vector<DrawTask> tasks;
  for (int64_t i = 0; i < 8; ++i) tasks.push_back({sequences[i].get(), i});
  const std::vector<Draw> draws = DrawTokens(logits, EmulatedSampler(), tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    SCOPED_TRACE(i);
    if (i == 2 || i == 5) {
      EXPECT_ERROR(draws[i].token.status(), kInternal, "not finite");
    } else {
      EXPECT_OK(draws[i].token.status());
    }
  }
}

}  // namespace
}  // namespace taopd::testing
