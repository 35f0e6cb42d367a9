// Tests of requests and supports of each kind, on a teacher with six tokens of known probabilities.
#include "trainer/step/support.h"

#include <cmath>
#include <limits>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();
// One row. In descending order of probability the ids are 3, 1, 0, 5, 2, 4.
const std::vector<double> kTeacher = {0.2, 0.25, 0.05, 0.4, 0.02, 0.08};

float LogOf(double probability) { return static_cast<float>(std::log(probability)); }

// Two rows. The student's best two ids are {1, 2} and {3, 1}.
Rollout ExampleRollout() {
  return {.prompt_ids = {5, 4},
          .response_ids = {0, 2},
          .behavior_log_probs = {-1, -1},
          .top_ids = {1, 2, 3, 1}};
}

SupportOptions Options(SupportKind kind, int32_t teacher_top_k, int32_t student_top_k) {
  return {.kind = kind,
          .teacher_top_k = teacher_top_k,
          .student_top_k = student_top_k,
          .teacher_temperature = 0.5f,
          .vocab_size = 6};
}

// Returns the teacher's answer.
TeacherScores Answer(const TeacherRequest& request) {
  const int32_t order[] = {3, 1, 0, 5, 2, 4};
  TeacherScores scores = {.top_k = request.top_k};
  for (int64_t r = 0; r < 2; ++r) {
    double tail = 1, outside = 1;
    std::vector<bool> named(6, false);
    for (int32_t j = 0; j < request.top_k; ++j) {
      scores.ids.push_back(order[j]);
      scores.log_probs.push_back(LogOf(kTeacher[order[j]]));
      tail -= kTeacher[order[j]];
      named[order[j]] = true;
    }
    for (int32_t j = 0; j < request.num_candidates; ++j) {
      const int32_t id = request.candidate_ids[r * request.num_candidates + j];
      scores.candidate_log_probs.push_back(LogOf(kTeacher[id]));
      named[id] = true;
    }
    for (int32_t v = 0; v < 6; ++v) outside -= named[v] ? kTeacher[v] : 0;
    scores.log_tail.push_back(LogOf(tail));
    if (request.num_candidates > 0) scores.candidate_log_tail.push_back(LogOf(outside));
    scores.sampled_log_probs.push_back(-1);
    if (request.entropy) scores.entropy.push_back(1.5f + static_cast<float>(r));
    for (int32_t v = 0; request.dense && v < 6; ++v) {
      scores.dense_log_probs.push_back(LogOf(kTeacher[v]));
    }
  }
  return scores;
}

SupportScores Reduced(const SupportOptions& options, const Rollout& rollout = ExampleRollout()) {
  auto scores =
      ReduceToSupport(options, rollout, Answer(MakeTeacherRequest(options, rollout, "r")));
  EXPECT_OK(scores);
  return scores.ok() ? *std::move(scores) : SupportScores();
}

TEST(Support, RequestsAskForWhatTheKindNeeds) {
  const Rollout rollout = ExampleRollout();
  TeacherRequest request = MakeTeacherRequest(Options(SupportKind::kTeacher, 3, 0), rollout, "r");
  EXPECT_EQ(request.request_id, "r");
  EXPECT_THAT(request.token_ids, ElementsAre(5, 4, 0, 2));
  EXPECT_EQ(request.score_start, 2);
  EXPECT_EQ(request.top_k, 3);
  EXPECT_EQ(request.temperature, 0.5f);
  EXPECT_EQ(request.num_candidates, 0);
  EXPECT_TRUE(request.candidate_ids.empty());
  EXPECT_FALSE(request.dense || request.entropy);
  request = MakeTeacherRequest(Options(SupportKind::kUnion, 3, 2), rollout, "r");
  EXPECT_EQ(request.top_k, 3);
  EXPECT_EQ(request.num_candidates, 2);
  EXPECT_EQ(request.candidate_ids, rollout.top_ids);
  SupportOptions full = Options(SupportKind::kFullVocabulary, 3, 0);
  full.teacher_entropy = true;
  request = MakeTeacherRequest(full, rollout, "r");
  EXPECT_TRUE(request.dense && request.entropy);
}

TEST(Support, TeachersTopKStayAsTheyAre) {
  const SupportScores scores = Reduced(Options(SupportKind::kTeacher, 2, 0));
  EXPECT_THAT(scores.ids, ElementsAre(3, 1, 3, 1));
  EXPECT_EQ(scores.support_size, 2);
  EXPECT_FLOAT_EQ(scores.log_probs[1], LogOf(0.25));
  EXPECT_FLOAT_EQ(scores.log_tail[1], LogOf(0.35));
  EXPECT_THAT(scores.sampled_log_probs, ElementsAre(-1, -1));
  EXPECT_EQ(scores.num_shared, 0);
}

TEST(Support, StudentsTopKWithTheTailOutsideOfThem) {
  const SupportScores scores = Reduced(Options(SupportKind::kStudent, 0, 2));
  EXPECT_EQ(scores.support_size, 2);
  EXPECT_THAT(scores.ids, ElementsAre(1, 2, 3, 1));
  EXPECT_FLOAT_EQ(scores.log_probs[1], LogOf(0.05));
  EXPECT_FLOAT_EQ(scores.log_tail[0], LogOf(0.7));
  EXPECT_FLOAT_EQ(scores.log_tail[1], LogOf(0.35));
}

TEST(Support, UnionHoldsEachTokenOnceAndPadsTheRest) {
  const SupportScores scores = Reduced(Options(SupportKind::kUnion, 2, 2));
  EXPECT_EQ(scores.support_size, 4);
  EXPECT_THAT(scores.ids, ElementsAre(3, 1, 2, -1, 3, 1, -1, -1));
  EXPECT_FLOAT_EQ(scores.log_probs[2], LogOf(0.05));
  EXPECT_EQ(scores.log_probs[3], kMinusInf);
  EXPECT_FLOAT_EQ(scores.log_tail[0], LogOf(0.3));
  EXPECT_FLOAT_EQ(scores.log_tail[1], LogOf(0.35));
  EXPECT_EQ(scores.num_shared, 3);  // 1 in the first row, 3 and 1 in the second
}

TEST(Support, FullVocabularyIsCutToTheStudents) {
  SupportOptions options = Options(SupportKind::kFullVocabulary, 2, 0);
  SupportScores scores = Reduced(options);
  EXPECT_EQ(scores.dense_log_probs.size(), 12u);
  EXPECT_THAT(scores.ids, ElementsAre(3, 1, 3, 1));
  EXPECT_TRUE(scores.entropy.empty());
  options.vocab_size = 4;
  options.teacher_entropy = true;
  scores = Reduced(options);
  EXPECT_THAT(scores.entropy, ElementsAre(1.5f, 2.5f));
  ASSERT_EQ(scores.dense_log_probs.size(), 8u);
  for (int v = 0; v < 8; ++v) EXPECT_FLOAT_EQ(scores.dense_log_probs[v], LogOf(kTeacher[v % 4]));
}

TEST(Support, ForeignRepliesAreRefused) {
  const Rollout rollout = ExampleRollout();
  const auto refused = [&](const SupportOptions& options, auto damage) {
    TeacherScores reply = Answer(MakeTeacherRequest(options, rollout, "r"));
    damage(&reply);
    EXPECT_ERROR(ReduceToSupport(options, rollout, reply), kDataLoss, "for a response of 2 tokens");
  };
  const SupportOptions both = Options(SupportKind::kUnion, 2, 2);
  refused(both, [](auto* s) { s->ids.pop_back(); });
  refused(both, [](auto* s) { s->log_probs.pop_back(); });
  refused(both, [](auto* s) { s->log_tail.pop_back(); });
  refused(both, [](auto* s) { s->sampled_log_probs.clear(); });
  refused(both, [](auto* s) { s->candidate_log_probs.clear(); });
  refused(both, [](auto* s) { s->candidate_log_tail.clear(); });
  const SupportOptions full = Options(SupportKind::kFullVocabulary, 2, 0);
  refused(full, [](auto* s) { s->dense_log_probs.clear(); });
  refused(full, [](auto* s) { s->dense_log_probs.resize(10); });
  SupportOptions small = both;
  small.vocab_size = 1;
  const TeacherScores reply = Answer(MakeTeacherRequest(small, rollout, "r"));
  EXPECT_ERROR(ReduceToSupport(small, rollout, reply), kFailedPrecondition,
               "all of the teacher's 2 most probable tokens are beyond the student's vocabulary of "
               "1, such as 3");
}

// The student lacks token 3, the teacher's best.
TEST(Support, WhatOnlyTheTeacherHasBelongsToItsTail) {
  SupportOptions options = Options(SupportKind::kTeacher, 3, 0);
  options.vocab_size = 3;
  SupportScores scores = Reduced(options);
  EXPECT_EQ(scores.num_beyond_vocabulary, 2);
  EXPECT_THAT(scores.ids, ElementsAre(1, 0, -1, 1, 0, -1));
  EXPECT_FLOAT_EQ(scores.log_probs[0], LogOf(kTeacher[1]));
  EXPECT_EQ(scores.log_probs[2], kMinusInf);
  EXPECT_FLOAT_EQ(scores.log_tail[1], LogOf(1 - kTeacher[1] - kTeacher[0]));
  // In a union the student's tokens fill the places of the missing token.
  Rollout rollout = ExampleRollout();
  rollout.top_ids = {1, 2, 2, 0};
  options = Options(SupportKind::kUnion, 2, 2);
  options.vocab_size = 3;
  scores = Reduced(options, rollout);
  EXPECT_THAT(scores.ids, ElementsAre(1, 2, -1, -1, 1, 2, 0, -1));
  // A place that stays empty because its token is beyond the vocabulary does not count as shared.
  EXPECT_EQ(scores.num_shared, 1);
  EXPECT_EQ(scores.num_beyond_vocabulary, 2);
  EXPECT_FLOAT_EQ(scores.log_tail[0], LogOf(1 - kTeacher[1] - kTeacher[2]));
  EXPECT_FLOAT_EQ(scores.log_tail[1], LogOf(1 - kTeacher[1] - kTeacher[2] - kTeacher[0]));
  // A tail that the teacher does not report stays unknown.
  options = Options(SupportKind::kTeacher, 2, 0);
  options.vocab_size = 3;
  TeacherScores reply = Answer(MakeTeacherRequest(options, rollout, "r"));
  reply.log_tail = {NAN, NAN};
  ASSERT_OK_AND_ASSIGN(scores, ReduceToSupport(options, rollout, reply));
  EXPECT_TRUE(std::isnan(scores.log_tail[0]));
}

}  // namespace
}  // namespace taopd::testing
