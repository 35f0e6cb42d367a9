#include "common/engine/scheduling/sequence.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

InferenceRequest Request() {
  InferenceRequest request = {.token_ids = {1, 2}, .sampling = SamplingParams()};
  request.sampling->max_new_tokens = 4;
  return request;
}

TEST(Sequence, ShouldStopEndsIt) {
  InferenceRequest request = Request();
  std::vector<int32_t> streamed, asked;
  request.on_token = [&](const GeneratedTokens& so_far, bool is_last) {
    EXPECT_EQ(asked, so_far.ids);  // should_stop comes first
    EXPECT_EQ(is_last, so_far.ids.back() == 7);
    if (is_last) {
      EXPECT_EQ(so_far.finish, FinishReason::kStop);
    }
    streamed.push_back(so_far.ids.back());
  };
  request.should_stop = [&](int32_t id) {
    asked.push_back(id);
    return id == 7;
  };
  Sequence sequence(1, request, nullptr, {9});
  sequence.Append({.id = 5});
  EXPECT_FALSE(sequence.finished);
  sequence.Append({.id = 7});
  EXPECT_TRUE(sequence.finished);
  EXPECT_EQ(sequence.generated.finish, FinishReason::kStop);
  EXPECT_EQ(asked, (std::vector<int32_t>{5, 7}));
  EXPECT_EQ(sequence.generated.ids, asked);
  EXPECT_EQ(streamed, asked);
}

TEST(Sequence, KeepsWhatWasAskedFor) {
  InferenceRequest request = Request();
  Sequence all_by_default(1, request, nullptr, {9});
  all_by_default.Append({.id = 5, .log_prob = -1.0f, .raw_log_prob = -2.0f, .rank = 3});
  EXPECT_EQ(all_by_default.generated.log_probs, std::vector<float>{-1.0f});
  EXPECT_TRUE(all_by_default.generated.raw_log_probs.empty());
  EXPECT_TRUE(all_by_default.generated.ranks.empty());
  request.sampling->log_probs = false;
  request.sampling->raw_log_probs = true;
  request.sampling->ranks = true;
  Sequence others(1, request, nullptr, {9});
  others.Append({.id = 5, .log_prob = -1.0f, .raw_log_prob = -2.0f, .rank = 3});
  EXPECT_TRUE(others.generated.log_probs.empty());
  EXPECT_EQ(others.generated.raw_log_probs, std::vector<float>{-2.0f});
  EXPECT_EQ(others.generated.ranks, std::vector<int32_t>{3});
}

TEST(Sequence, EndsAtEndIdsAndAtItsLength) {
  for (const bool ignore_eos : {false, true}) {
    InferenceRequest request = Request();
    request.sampling->ignore_eos = ignore_eos;
    request.sampling->stop_token_ids = {3};
    Sequence at_eos(1, request, nullptr, {9});
    at_eos.Append({.id = 9});
    EXPECT_EQ(at_eos.finished, !ignore_eos);
    Sequence at_stop(1, request, nullptr, {9});
    at_stop.Append({.id = 3});
    EXPECT_TRUE(at_stop.finished);
    Sequence at_length(1, request, nullptr, {9});
    for (int i = 0; i < 4; ++i) {
      EXPECT_FALSE(at_length.finished);
      at_length.Append({.id = 5});
    }
    EXPECT_TRUE(at_length.finished);
    EXPECT_EQ(at_length.generated.finish, FinishReason::kLength);
  }
}

// Each token is recorded for the penalties of the next one.
TEST(Sequence, RemembersItsTokens) {
  InferenceRequest request = Request();
  request.sampling->frequency_penalty = 1.0f;
  Sequence sequence(1, request, nullptr, {});
  sequence.Append({.id = 5});
  sequence.Append({.id = 5});
  const SamplingState& state = *sequence.sampling_state;
  EXPECT_EQ(state.generated_ids().size(), 2u);
  ASSERT_EQ(state.seen().count(5), 1u);
  EXPECT_EQ(state.seen().at(5).num_generated, 2);
  EXPECT_EQ(state.seen().count(1), 0u);  // only repetition_penalty depends on the prompt
}

}  // namespace
}  // namespace taopd::testing
