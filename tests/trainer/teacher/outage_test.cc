// Teachers that fail, come back, move on to another port's twin, or ask for patience.
#include <absl/synchronization/blocking_counter.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/wire/teacher_protocol.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd::testing {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);

class OutageTest : public ::testing::Test {
 protected:
  OutageTest() {
    teacher_.Start();
    options_ = FastOptions({&teacher_});
  }
  void Connect() {
    ASSERT_OK_AND_ASSIGN(client_, MakeNetworkTeacherClient(options_));
    ASSERT_OK(client_->Connect(absl::Seconds(20)));
  }

  FakeTeacher teacher_;
  TeacherClientOptions options_;
  std::unique_ptr<TeacherClient> client_;
};

TEST_F(OutageTest, PassingErrorsAreTriedAgain) {
  options_.request_timeout = absl::Seconds(1);  // for six answers, however busy the machine is
  Connect();
  std::vector<FakeCall> hung;
  std::atomic<int> num_calls = 0;
  teacher_.SetHandler([&](FakeCall call) {
    constexpr grpc::StatusCode kPassing[] = {
        grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::RESOURCE_EXHAUSTED,
        grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::CANCELLED,
        grpc::StatusCode::INTERNAL};
    const int number = num_calls++;
    if (number < 5) return call.finish({kPassing[number], "as told"});
    if (number == 5) return hung.push_back(call);  // ends by the deadline of the attempt
    teacher_.AnswerRight(call);
  });
  ASSERT_OK_AND_ASSIGN(const auto answer, ScoreOne(client_.get(), ExampleRequest(1)));
  EXPECT_EQ(answer.log_probs, ExampleScores(ExampleRequest(1), ExampleInfo()).log_probs);
  // On a slow machine, other attempts may end by their deadline as well.
  EXPECT_GE(num_calls, 7);
  EXPECT_GE(client_->stats().retries, 6u);
  EXPECT_EQ(client_->stats().failures, 0u);
  for (const FakeCall& call : hung) call.finish(grpc::Status::CANCELLED);
}

TEST_F(OutageTest, InternalErrorIsTriedOnceMore) {
  Connect();
  teacher_.SetHandler([](FakeCall call) { call.finish({grpc::StatusCode::INTERNAL, "broke"}); });
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kInternal, "broke");
  EXPECT_EQ(teacher_.num_calls(), 2);
}

TEST_F(OutageTest, PushbackIsHonored) {
  Connect();
  constexpr absl::Duration kPushback = absl::Milliseconds(300);  // 15 times the longest pause
  std::atomic<int> num_calls = 0;
  absl::Time refused_at, came_back_at;
  teacher_.SetHandler([&](FakeCall call) {
    if (++num_calls == 1) {
      refused_at = absl::Now();
      call.context->AddTrailingMetadata(kRetryPushbackKey, "300");
      return call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full"});
    }
    came_back_at = absl::Now();
    teacher_.AnswerRight(call);
  });
  EXPECT_OK(ScoreOne(client_.get(), ExampleRequest(1)));
  EXPECT_EQ(num_calls, 2);
  EXPECT_GE(came_back_at - refused_at, kPushback);
}

TEST_F(OutageTest, NegativePushbackMeansNever) {
  Connect();
  teacher_.SetHandler([](FakeCall call) {
    call.context->AddTrailingMetadata(kRetryPushbackKey, "-1");
    call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "go away"});
  });
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kResourceExhausted, "go away");
  EXPECT_EQ(teacher_.num_calls(), 1);
}

TEST_F(OutageTest, EndlessOutageUsesUpTheBudget) {
  options_.outage_budget = absl::Milliseconds(300);
  options_.max_in_flight_per_endpoint = 2;
  Connect();
  teacher_.SetHandler([](FakeCall call) { call.finish({grpc::StatusCode::UNAVAILABLE, "no"}); });
  const absl::Time start = absl::Now();
  // Also those that never got their turn are given up.
  const auto answers = ScoreAll(client_.get(), ExampleRequests(20));
  EXPECT_GE(absl::Now() - start, options_.outage_budget);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  for (const auto& answer : answers) {
    EXPECT_ERROR(answer, kUnavailable, "outage_budget 300ms is used up");
  }
  // The last attempt may have ended by the budget instead of the teacher's error.
  EXPECT_ERROR(answers[0], kUnavailable, "last error: ");
  EXPECT_TRUE(client_->stats().waiting);
  EXPECT_EQ(client_->stats().failures, 20u);
  teacher_.SetHandler(nullptr);
  // On a slow machine, the next probe may come too late for a request's budget.
  EXPECT_TRUE(
      PollUntil(kDeadline, [this] { return ScoreOne(client_.get(), ExampleRequest(1)).ok(); }));
  EXPECT_FALSE(client_->stats().waiting);
}

TEST_F(OutageTest, HungTeacherUsesUpTheBudget) {
  options_.request_timeout = absl::Milliseconds(50);
  options_.outage_budget = absl::Milliseconds(150);
  Connect();
  teacher_.Hold();
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kUnavailable, "outage_budget");
}

TEST_F(OutageTest, RequestsSurviveARestart) {
  const int port = teacher_.port();
  options_.max_in_flight_per_endpoint = 8;
  Connect();
  teacher_.Hold();
  constexpr int kCount = 100;
  absl::BlockingCounter open(kCount);
  std::atomic<int> num_right = 0;
  for (const TeacherRequest& request : ExampleRequests(kCount)) {
    client_->Score(request, [&, request](absl::StatusOr<TeacherScores> scores) {
      EXPECT_OK(scores);
      num_right += scores.ok() && scores->ids == ExampleScores(request, ExampleInfo()).ids;
      open.DecrementCount();
    });
  }
  for (const FakeCall& call : teacher_.TakeHeld(8)) teacher_.AnswerRight(call);
  // Stops with requests on the wire, which it will never answer.
  EXPECT_TRUE(PollUntil(kDeadline, [this] { return client_->stats().in_flight > 0; }));
  teacher_.Stop();
  EXPECT_TRUE(PollUntil(kDeadline, [this] { return client_->stats().waiting; }));
  teacher_.Start(port);
  open.Wait();
  EXPECT_EQ(num_right, kCount);
  EXPECT_GE(client_->stats().retries, 1u);
  EXPECT_EQ(client_->stats().failures, 0u);
}

}  // namespace
}  // namespace taopd::testing
