#include "trainer/step/scored_batch.h"

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/support/byte_tokenizer.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/scripted_teacher.h"

namespace taopd::testing {
namespace {

// Answers on the test's command.
class ManualRollouts final : public RolloutEngine {
 public:
  void Generate(std::vector<RolloutRequest> requests,
                std::function<void(int64_t, absl::StatusOr<Rollout>)> done) override {
    requests_ = std::move(requests);
    done_ = std::move(done);
  }
  void Finish(int64_t index, int32_t num_tokens) {
    Rollout rollout = {.prompt_ids = requests_[index].prompt_ids};
    rollout.response_ids.assign(num_tokens, static_cast<int32_t>(index));
    rollout.behavior_log_probs.assign(num_tokens, -1.0f);
    done_(index, std::move(rollout));
  }
  void Fail(int64_t index, absl::Status status) { done_(index, status); }
  // Drops the callback, as an engine does once every rollout has ended.
  void DropCallback() { done_ = nullptr; }

 private:
  std::vector<RolloutRequest> requests_;
  std::function<void(int64_t, absl::StatusOr<Rollout>)> done_;
};

class ScoredBatchTest : public ::testing::Test {
 protected:
  std::shared_ptr<ScoredBatch> Start(int count, std::unique_ptr<TeacherViews> views = nullptr,
                                     Timeline* timeline = nullptr) {
    std::vector<RolloutRequest> requests(count);
    for (int i = 0; i < count; ++i) requests[i].prompt_ids = {7, static_cast<int32_t>(i)};
    const SupportOptions support = {.teacher_top_k = 2, .vocab_size = 10};
    return ScoredBatch::Start(&rollouts_, std::move(requests),
                              {.teacher = &teacher_,
                               .support = support,
                               .name = "test",
                               .timeline = timeline,
                               .views = std::move(views)});
  }
  static absl::Status GoOn() { return absl::OkStatus(); }
  // The teacher answers the i-th request that it has got.
  void Answer(size_t i, int32_t first_id = 0) {
    const TeacherRequest& request = pending_[i].first;
    const size_t rows = request.token_ids.size() - request.score_start;
    TeacherScores scores = {.top_k = request.top_k};
    for (size_t r = 0; r < rows; ++r) {
      for (int32_t j = 0; j < request.top_k; ++j) scores.ids.push_back(first_id + j);
    }
    scores.log_probs.assign(rows * request.top_k, -1.0f);
    scores.log_tail.assign(rows, -1.0f);
    scores.sampled_log_probs.assign(rows, -1.0f);
    pending_[i].second(std::move(scores));
  }

  ManualRollouts rollouts_;
  std::vector<std::pair<TeacherRequest, ScriptedTeacher::Done>> pending_;
  ScriptedTeacher teacher_{[this](TeacherRequest request, ScriptedTeacher::Done done) {
    pending_.emplace_back(std::move(request), std::move(done));
  }};
};

TEST_F(ScoredBatchTest, AFinishedRolloutGoesToTheTeacherAtOnce) {
  auto batch = Start(2);
  EXPECT_TRUE(pending_.empty());
  rollouts_.Finish(1, 3);
  ASSERT_EQ(pending_.size(), 1u);
  EXPECT_EQ(pending_[0].first.token_ids, (std::vector<int32_t>{7, 1, 1, 1, 1}));
  EXPECT_EQ(pending_[0].first.score_start, 2);
  EXPECT_EQ(pending_[0].first.top_k, 2);
  rollouts_.Finish(0, 1);
  Answer(0);
  Answer(1);
  ASSERT_OK(batch->WaitScored(0, 2, GoOn));
  EXPECT_EQ(batch->item(1).scores.log_tail.size(), 3u);
  EXPECT_EQ(batch->item(0).rollout.response_ids.size(), 1u);
}

TEST_F(ScoredBatchTest, TheTimelineHasTheTimesOfGenerationAndOfScoring) {
  ManualClock clock;
  Timeline timeline(&clock);
  auto batch = Start(1, nullptr, &timeline);
  clock.Advance(absl::Seconds(3));
  rollouts_.Finish(0, 1);
  clock.Advance(absl::Seconds(2));
  Answer(0);
  ASSERT_OK(batch->WaitScored(0, 1, GoOn));
  const auto trace = nlohmann::json::parse(timeline.Json());
  std::map<std::string, std::pair<double, double>> spans;  // start and duration in microseconds
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") spans[event.at("cat")] = {event.at("ts"), event.at("dur")};
  }
  EXPECT_EQ(spans["rollout"], std::pair(0.0, 3e6));
  EXPECT_EQ(spans["teacher"], std::pair(3e6, 2e6));
}

// Makes views of one prompt: the rollout of one token is wrong, the others are right.
class ScoredViewsTest : public ScoredBatchTest {
 protected:
  std::unique_ptr<TeacherViews> Views(int count, bool skips_missing) {
    prompt_.teacher_prompt.has_sibling = true;
    prompt_.teacher_prompt.text = "a{sibling}";
    const TeacherViewOptions options = {
        .tokenizer = &tokenizer_,
        .is_correct = [](const PromptRecord&,
                         const Rollout& rollout) { return rollout.response_ids.size() > 1; },
        .skips_missing = skips_missing};
    return std::make_unique<TeacherViews>(options,
                                          std::vector<const PromptRecord*>(count, &prompt_), count);
  }
  ByteTokenizer tokenizer_;
  PromptRecord prompt_;
};

TEST_F(ScoredViewsTest, TheTeacherSeesItsOwnPromptAndScoresTheResponse) {
  auto batch = Start(3, Views(3, true));
  rollouts_.Finish(0, 1);
  EXPECT_TRUE(pending_.empty()) << "it waits for a right response";
  rollouts_.Finish(1, 2);
  ASSERT_EQ(pending_.size(), 1u);
  EXPECT_EQ(pending_[0].first.token_ids, (std::vector<int32_t>{'a', 1, 1, 0}));
  EXPECT_EQ(pending_[0].first.score_start, 3);
  rollouts_.Finish(2, 1);
  ASSERT_EQ(pending_.size(), 3u);
  EXPECT_EQ(pending_[1].first.token_ids, (std::vector<int32_t>{7, 1, 1, 1}));
  for (size_t i = 0; i < 3; ++i) Answer(i);
  ASSERT_OK(batch->WaitScored(0, 3, GoOn));
  EXPECT_EQ(batch->item(0).scores.log_tail.size(), 1u);
  EXPECT_EQ(batch->item(0).teacher_prompt_ids, (std::vector<int32_t>{'a', 1, 1}));
  // The only right response has no sibling: it is scored after the student's prompt.
  EXPECT_TRUE(batch->item(1).lacks_teacher_prompt);
  EXPECT_FALSE(batch->item(0).lacks_teacher_prompt);
  batch->WaitIdle();
}

TEST_F(ScoredViewsTest, AFailedSiblingEndsTheWait) {
  auto batch = Start(3, Views(3, false));
  rollouts_.Finish(0, 1);
  rollouts_.Fail(1, Internal("numerics"));
  rollouts_.Finish(2, 2);
  EXPECT_ERROR(batch->WaitScored(0, 1, GoOn), kInternal, "rollout 1: numerics");
  batch->WaitIdle();
}

TEST_F(ScoredBatchTest, PartsAreReadyBeforeTheWhole) {
  auto batch = Start(3);
  rollouts_.Finish(0, 1);
  Answer(0);
  ASSERT_OK(batch->WaitScored(0, 1, GoOn));
  rollouts_.Finish(2, 1);
  rollouts_.Finish(1, 1);
  batch->WaitAllGenerated();
  Answer(1);
  Answer(2);
  ASSERT_OK(batch->WaitScored(1, 3, GoOn));
  batch->WaitIdle();
}

TEST_F(ScoredBatchTest, AFailedRolloutEndsTheWaitAndAsksForNoMoreScores) {
  auto batch = Start(3);
  rollouts_.Fail(0, Internal("numerics"));
  rollouts_.Finish(1, 1);
  rollouts_.Finish(2, 1);
  EXPECT_ERROR(batch->WaitScored(1, 2, GoOn), kInternal, "rollout 0: numerics");
  EXPECT_TRUE(pending_.empty());
  batch->WaitIdle();
}

TEST_F(ScoredBatchTest, ATeacherErrorNamesTheRollout) {
  auto batch = Start(1);
  rollouts_.Finish(0, 1);
  pending_[0].second(Unavailable("gone"));
  EXPECT_ERROR(batch->WaitScored(0, 1, GoOn), kUnavailable, "teacher scores of rollout 0: gone");
}

TEST_F(ScoredBatchTest, WrongShapesAndForeignIdsAreRefused) {
  auto batch = Start(1);
  rollouts_.Finish(0, 2);
  pending_[0].second(TeacherScores());
  EXPECT_ERROR(batch->WaitScored(0, 1, GoOn), kDataLoss,
               "scores of 0 rows for a response of 2 tokens");
  auto other = Start(1);
  rollouts_.Finish(0, 2);
  Answer(1, /*first_id=*/10);  // ids 10 and 11; the vocabulary is 10
  EXPECT_ERROR(other->WaitScored(0, 1, GoOn), kFailedPrecondition, "vocabulary of 10, such as 10");
}

TEST_F(ScoredBatchTest, GeneratedComesBeforeScoredAndTheWaiterCanGiveUp) {
  auto batch = Start(2);
  const auto give_up = [] { return absl::CancelledError("stop"); };
  EXPECT_ERROR(batch->WaitScored(0, 1, give_up), kCancelled, "stop");
  rollouts_.Finish(1, 1);
  EXPECT_OK(batch->WaitGenerated(1, 2, give_up));
  EXPECT_ERROR(batch->WaitGenerated(0, 2, give_up), kCancelled, "stop");
  EXPECT_ERROR(batch->WaitScored(1, 2, give_up), kCancelled, "stop");
  rollouts_.Finish(0, 1);
  EXPECT_OK(batch->WaitGenerated(0, 2, give_up));
  Answer(0);
  Answer(1);
  EXPECT_OK(batch->WaitScored(0, 2, give_up));
  batch->WaitIdle();
}

TEST_F(ScoredBatchTest, CallbacksKeepTheBatchAlive) {
  const std::weak_ptr<ScoredBatch> batch = Start(1);
  ASSERT_FALSE(batch.expired());  // the engine's callback
  rollouts_.Finish(0, 1);
  rollouts_.DropCallback();
  ASSERT_FALSE(batch.expired());  // the client's
  Answer(0);
  EXPECT_OK(batch.lock()->WaitScored(0, 1, GoOn));
  pending_.clear();
  EXPECT_TRUE(batch.expired());
}

}  // namespace
}  // namespace taopd::testing
