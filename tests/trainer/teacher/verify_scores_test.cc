#include "trainer/teacher/verify_scores.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"

namespace taopd::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(VerifyTeacherScoresTest, SupportOfTheWholeVocabularyHasNoTail) {
  TeacherInfo info = ExampleInfo();
  info.max_top_k = 50;
  const TeacherRequest request = ExampleRequest(1, 12, 50);
  const TeacherScores scores = ExampleScores(request, info);
  EXPECT_EQ(scores.log_tail[0], -kInf);
  EXPECT_OK(VerifyTeacherScores(scores, request, info));
}

TEST(VerifyTeacherScoresTest, ImpossibleTokensAreLegal) {
  TeacherInfo info = ExampleInfo();
  TeacherRequest request = ExampleRequest(1);
  request.token_ids = {0, 1, 2, 3};
  request.top_k = 2;
  const TeacherScores scores = {.top_k = 2,
                                .ids = {9, 3},
                                .log_probs = {0.0f, -kInf},
                                .log_tail = {-kInf},
                                .sampled_log_probs = {-kInf},
                                .revision = info.revision};
  EXPECT_OK(VerifyTeacherScores(scores, request, info));
}

// Returns the smallest id that is none of the four of a row.
int32_t IdOutside(const TeacherScores& scores, int row) {
  const auto first = scores.ids.begin() + 4 * row;
  int32_t id = 0;
  while (std::find(first, first + 4, id) != first + 4) ++id;
  return id;
}

// Makes row 1's sampled token the row's second id, and row 2's one outside of the row.
TeacherRequest RequestWithSampledTokens(TeacherRequest request) {
  const TeacherInfo info = ExampleInfo();
  request.token_ids[request.score_start + 1] = ExampleScores(request, info).ids[1 * 4 + 1];
  request.token_ids[request.score_start + 2] = IdOutside(ExampleScores(request, info), 2);
  return request;
}

// Each damage, and what the message must say.
struct Damage {
  const char* says;
  void (*apply)(TeacherScores*);
};

class DamagedScoresTest : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedScoresTest, IsRefused) {
  const TeacherInfo info = ExampleInfo();
  TeacherRequest request = RequestWithSampledTokens(FullRequest(5));
  TeacherScores scores = ExampleScores(request, info);
  // Row 0's first candidate is its sampled token. Row 1's first is the row's best id, and its
  // second stands outside of the row.
  request.candidate_ids[0] = request.token_ids[request.score_start];
  request.candidate_ids[5] = scores.ids[4];
  request.candidate_ids[6] = IdOutside(scores, 1);
  scores = ExampleScores(request, info);
  ASSERT_OK(VerifyTeacherScores(scores, request, info));
  GetParam().apply(&scores);
  EXPECT_ERROR(VerifyTeacherScores(scores, request, info), kDataLoss, GetParam().says);
}

INSTANTIATE_TEST_SUITE_P(
    Each, DamagedScoresTest,
    ::testing::Values(
        Damage{"revision \"rev-2\" instead of \"rev-1\"", [](auto* s) { s->revision = "rev-2"; }},
        Damage{"top_k is 5 instead of 4", [](auto* s) { s->top_k = 5; }},
        Damage{"ids has 35 values instead of 36", [](auto* s) { s->ids.pop_back(); }},
        Damage{"logprobs has 37 values", [](auto* s) { s->log_probs.push_back(-9); }},
        Damage{"log_tail has 8 values", [](auto* s) { s->log_tail.pop_back(); }},
        Damage{"sampled_logprobs has 0 values", [](auto* s) { s->sampled_log_probs.clear(); }},
        Damage{"id 50 is outside", [](auto* s) { s->ids[6] = 50; }},
        Damage{"id -1 is outside", [](auto* s) { s->ids[35] = -1; }},
        Damage{"row 2: id", [](auto* s) { s->ids[8] = s->ids[11]; }},
        Damage{"logprobs[2] is nan", [](auto* s) { s->log_probs[2] = kNan; }},
        Damage{"logprobs[0] is 0.5", [](auto* s) { s->log_probs[0] = 0.5f; }},
        Damage{"logprobs[0] is inf", [](auto* s) { s->log_probs[4] = kInf; }},
        Damage{"is above the one before",
               [](auto* s) { std::swap(s->log_probs[4], s->log_probs[5]); }},
        Damage{"have the mass", [](auto* s) { s->log_tail[3] = -0.0f; }},
        Damage{"have the mass", [](auto* s) { s->log_tail[3] = -kInf; }},
        Damage{"log_tail is nan", [](auto* s) { s->log_tail[3] = kNan; }},
        Damage{"log_tail is 0.5", [](auto* s) { s->log_tail[3] = 0.5f; }},
        Damage{"sampled_logprobs is nan", [](auto* s) { s->sampled_log_probs[0] = kNan; }},
        Damage{"sampled_logprobs is 1", [](auto* s) { s->sampled_log_probs[0] = 1.0f; }},
        Damage{"contradicts", [](auto* s) { s->sampled_log_probs[1] -= 0.1f; }},
        Damage{"is above the last of the ids", [](auto* s) { s->sampled_log_probs[2] = -0.01f; }},
        Damage{"candidate_logprobs has 44 values instead of 45",
               [](auto* s) { s->candidate_log_probs.pop_back(); }},
        Damage{"candidate_log_tail has 0 values", [](auto* s) { s->candidate_log_tail.clear(); }},
        Damage{"dense_logprobs has 449 values", [](auto* s) { s->dense_log_probs.pop_back(); }},
        Damage{"entropy has 8 values", [](auto* s) { s->entropy.pop_back(); }},
        Damage{"candidate_logprobs[2] is nan", [](auto* s) { s->candidate_log_probs[2] = kNan; }},
        Damage{"candidate_log_tail is 0.5", [](auto* s) { s->candidate_log_tail[1] = 0.5f; }},
        Damage{"contradicts sampled_logprobs", [](auto* s) { s->candidate_log_probs[0] -= 0.1f; }},
        Damage{"contradicts logprobs", [](auto* s) { s->candidate_log_probs[5] -= 0.1f; }},
        Damage{"is above the last of the ids", [](auto* s) { s->candidate_log_probs[6] = -0.01f; }},
        Damage{"candidates and their tail have the mass",
               [](auto* s) { s->candidate_log_tail[3] = -0.0f; }},
        Damage{"dense_logprobs[7] is inf", [](auto* s) { s->dense_log_probs[7] = kInf; }},
        Damage{"dense_logprobs have the mass",
               [](auto* s) { s->dense_log_probs[s->ids[0]] = -kInf; }},
        Damage{"contradicts",
               [](auto* s) {  // two ids change places
                 const int32_t first = s->ids[0], second = s->ids[1];
                 std::swap(s->dense_log_probs[first], s->dense_log_probs[second]);
               }},
        Damage{"entropy -1", [](auto* s) { s->entropy[0] = -1; }},
        Damage{"entropy nan", [](auto* s) { s->entropy[0] = kNan; }},
        Damage{"entropy 4", [](auto* s) { s->entropy[0] = 4; }}));

TEST(VerifyTeacherScoresTest, TheSampledTokensTellRowsInAnotherOrder) {
  const TeacherInfo info = ExampleInfo();
  TeacherRequest request = RequestWithSampledTokens(ExampleRequest(5));
  TeacherScores scores = ExampleScores(request, info);
  std::rotate(scores.ids.begin(), scores.ids.begin() + 4, scores.ids.end());
  std::rotate(scores.log_probs.begin(), scores.log_probs.begin() + 4, scores.log_probs.end());
  std::rotate(scores.log_tail.begin(), scores.log_tail.begin() + 1, scores.log_tail.end());
  EXPECT_ERROR(VerifyTeacherScores(scores, request, info), kDataLoss, "sampled_logprobs");
}

TEST(VerifyTeacherScoresTest, RightCandidatesDenseRowsAndEntropiesPass) {
  const TeacherInfo info = ExampleInfo();
  for (int i = 0; i < 200; ++i) {
    const TeacherRequest request = FullRequest(i, 4 + i % 20, i % 17, i % 9);
    EXPECT_OK(VerifyTeacherRequest(request, info));
    EXPECT_OK(VerifyTeacherScores(ExampleScores(request, info), request, info));
  }
}

TEST(VerifyTeacherScoresTest, SampledTokenFitsIntoTheTail) {
  const TeacherInfo info = ExampleInfo();
  TeacherRequest request = ExampleRequest(1);
  request.token_ids = {0, 1, 2, 3};
  request.top_k = 1;
  TeacherScores scores = {.top_k = 1,
                          .ids = {9},
                          .log_probs = {std::log(0.9f)},
                          .log_tail = {std::log(0.1f)},
                          .sampled_log_probs = {std::log(0.1f)},
                          .revision = info.revision};
  EXPECT_OK(VerifyTeacherScores(scores, request, info));
  scores.sampled_log_probs = {std::log(0.11f)};
  EXPECT_ERROR(VerifyTeacherScores(scores, request, info), kDataLoss, "is above log_tail");
}

TEST(VerifyTeacherRequestTest, LimitsAreNamed) {
  const TeacherInfo info = ExampleInfo();
  const TeacherRequest good = ExampleRequest(1, 64, 16);
  EXPECT_OK(VerifyTeacherRequest(good, info));
  const auto expect_refused = [&](auto change, const std::string& says, TeacherInfo limits) {
    TeacherRequest request = good;
    change(&request);
    EXPECT_ERROR(VerifyTeacherRequest(request, limits), kInvalidArgument, says);
  };
  expect_refused([](auto* r) { r->token_ids.push_back(1); }, "max_model_len is 64", info);
  expect_refused([](auto* r) { r->score_start = 0; }, "score_start 0 is outside [1, 64)", info);
  expect_refused([](auto* r) { r->score_start = 64; }, "score_start 64", info);
  expect_refused([](auto* r) { r->token_ids.clear(); }, "score_start 3 is outside [1, 0)", info);
  expect_refused([](auto* r) { r->top_k = 17; }, "top_k 17 is outside [0, 16]", info);
  expect_refused([](auto* r) { r->top_k = -1; }, "top_k -1", info);
  expect_refused([](auto* r) { r->num_candidates = 9; }, "num_candidates 9 is outside [0, 8]",
                 info);
  expect_refused([](auto* r) { r->num_candidates = 1; }, "candidate_ids has 0 ids", info);
  expect_refused(
      [](auto* r) {
        r->num_candidates = 1;
        r->candidate_ids.assign(61, 50);
      },
      "candidate_ids[0] 50 is outside [0, 50)", info);
  TeacherInfo large = info;
  large.max_dense_vocab_size = 49;
  expect_refused([](auto* r) { r->dense = true; },
                 "head_vocab_size 50 exceeds its max_dense_vocab_size 49", large);
  expect_refused([](auto* r) { r->temperature = 0.5f; }, "supports only temperature 1", info);
  expect_refused([](auto* r) { r->token_ids[7] = 50; }, "token_ids[7] 50 is outside [0, 50)", info);
  expect_refused([](auto* r) { r->token_ids[0] = -2; }, "token_ids[0] -2", info);
  TeacherInfo warm = info;
  warm.supports_temperature = true;
  expect_refused([](auto* r) { r->temperature = 0; }, "temperature 0 is not", warm);
  expect_refused([](auto* r) { r->temperature = kNan; }, "temperature nan", warm);
  expect_refused([](auto* r) { r->temperature = kInf; }, "temperature inf", warm);
  TeacherRequest request = good;
  request.temperature = 0.5f;
  EXPECT_OK(VerifyTeacherRequest(request, warm));
}

}  // namespace
}  // namespace taopd::testing
