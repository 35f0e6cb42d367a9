#include "server/app/canary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

InferenceResult Answer(const InferenceRequest& request) {
  return {.score = FakeScore(request.token_ids, *request.score)};
}

// The verdict on `answer`; a missing verdict is CANCELLED.
absl::Status Verdict(Canary* canary, const absl::StatusOr<InferenceResult>& answer) {
  return canary->Judge(answer).value_or(absl::CancelledError("no verdict"));
}

TEST(CanaryTest, TheSameAnswerIsRightAndTheProbeNeverComesFromTheCache) {
  Canary canary(kFakeLimits, /*bitwise=*/true, "float32");
  const InferenceRequest first = canary.NextRequest(), second = canary.NextRequest();
  EXPECT_EQ(first.token_ids, second.token_ids);
  EXPECT_NE(first.cache_salt, second.cache_salt);
  EXPECT_OK(Verdict(&canary, Answer(first)));
  EXPECT_OK(Verdict(&canary, Answer(second)));
}

TEST(CanaryTest, ProbeFitsTheModel) {
  EngineLimits limits = kFakeLimits;
  limits.max_model_len = 2;
  limits.max_logprobs = 0;
  Canary canary(limits, true, "float32");
  ASSERT_TRUE(canary.CanProbe());
  const InferenceRequest request = canary.NextRequest();
  EXPECT_EQ(request.token_ids.size(), 2u);
  EXPECT_EQ(request.score->top_k, 0);
  for (int32_t id : request.token_ids) EXPECT_LT(id, limits.vocab_size);
  limits.max_model_len = 1;
  EXPECT_FALSE(Canary(limits, true, "float32").CanProbe());
}

TEST(CanaryTest, OneOtherBitIsWrongWhereTheEnginePromisesTheSameBytes) {
  for (const bool bitwise : {true, false}) {
    Canary canary(kFakeLimits, bitwise, "bfloat16");
    InferenceResult answer = Answer(canary.NextRequest());
    ASSERT_OK(Verdict(&canary, answer));
    float& moved = answer.score->entropy.back();
    moved = std::nextafter(moved, 0.0f);
    const absl::Status verdict = Verdict(&canary, answer);
    EXPECT_EQ(verdict.ok(), !bitwise) << verdict;
    EXPECT_THAT(std::string(verdict.message()), HasSubstr(bitwise ? "the bits of" : ""));
  }
}

TEST(CanaryTest, ALogProbMayMoveBySomeRoundingsOfTheDtypeAndNoFurther) {
  EXPECT_EQ(Canary::ToleranceOf("bfloat16"), 0.25f);
  EXPECT_EQ(Canary::ToleranceOf("float16"), 0.03125f);
  EXPECT_EQ(Canary::ToleranceOf("float32"), 0.001f);
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    Canary canary(kFakeLimits, /*bitwise=*/false, dtype);
    InferenceResult answer = Answer(canary.NextRequest());
    ASSERT_OK(Verdict(&canary, answer));
    answer.score->sampled_log_probs[4] -= 0.9f * Canary::ToleranceOf(dtype);
    EXPECT_OK(Verdict(&canary, answer));
    answer.score->sampled_log_probs[4] -= 0.2f * Canary::ToleranceOf(dtype);
    EXPECT_ERROR(Verdict(&canary, answer), kInternal, "position 5 was");
  }
}

TEST(CanaryTest, NumbersThatCannotBeRightAreNamed) {
  const float uniform = -std::log(static_cast<float>(kFakeVocab));
  const std::pair<std::function<void(ScoreRows&)>, const char*> cases[] = {
      {[](auto& rows) { rows.entropy[7] = NAN; }, "position 8 cannot be right"},
      {[](auto& rows) { rows.log_probs[0] = 0.01f; }, "position 1 cannot be right"},
      {[&](auto& rows) {
         for (auto* values : {&rows.log_probs, &rows.sampled_log_probs})
           std::fill(values->begin(), values->end(), uniform);
       },
       "weights are lost"}};
  for (const auto& [change, message] : cases) {
    Canary canary(kFakeLimits, true, "float32");
    InferenceResult answer = Answer(canary.NextRequest());
    change(*answer.score);
    EXPECT_ERROR(Verdict(&canary, answer), kInternal, message);
  }
}

TEST(CanaryTest, ABusyEngineSaysNothingAndABrokenOneDoes) {
  Canary canary(kFakeLimits, true, "float32");
  EXPECT_FALSE(canary.Judge(ResourceExhausted("the queue is full")).has_value());
  EXPECT_FALSE(canary.Judge(Unavailable("draining")).has_value());
  EXPECT_ERROR(Verdict(&canary, Internal("logits are not finite")), kInternal,
               "logits are not finite");
}

}  // namespace
}  // namespace taopd::testing
