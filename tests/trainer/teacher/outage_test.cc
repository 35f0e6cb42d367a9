// Teachers that fail, come back, move on to another port's twin, or ask for patience.
#include <absl/synchronization/blocking_counter.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/wire/teacher_protocol.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd {
namespace {

using testing::ExampleInfo;
using testing::ExampleRequest;
using testing::ExampleScores;
using testing::FakeCall;
using testing::FakeTeacher;
using testing::FastOptions;
using testing::ScoreAll;
using testing::ScoreOne;

std::unique_ptr<TeacherClient> Connected(const TeacherClientOptions& options) {
  auto client = MakeNetworkTeacherClient(options);
  EXPECT_OK(client);
  EXPECT_OK((*client)->Connect(absl::Seconds(20)));
  return std::move(*client);
}

std::vector<TeacherRequest> Requests(int count) {
  std::vector<TeacherRequest> requests;
  for (int i = 0; i < count; ++i) requests.push_back(ExampleRequest(i));
  return requests;
}

TEST(OutageTest, PassingErrorsAreTriedAgain) {
  FakeTeacher teacher;
  teacher.Start();
  TeacherClientOptions options = FastOptions({&teacher});
  options.request_timeout = absl::Milliseconds(200);
  auto client = Connected(options);
  std::vector<FakeCall> hung;
  std::atomic<int> num_calls = 0;
  teacher.SetHandler([&](FakeCall call) {
    switch (++num_calls) {
      case 1:
        return call.finish({grpc::StatusCode::UNAVAILABLE, "loading"});
      case 2:
        return call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full"});
      case 3:
        return call.finish({grpc::StatusCode::DEADLINE_EXCEEDED, "dropped"});
      case 4:
        return call.finish({grpc::StatusCode::CANCELLED, "dropped"});
      case 5:
        return call.finish({grpc::StatusCode::INTERNAL, "broke"});
      case 6:
        return hung.push_back(call);  // ends by the deadline of the attempt
      default:
        return teacher.AnswerRight(call);
    }
  });
  const auto answer = ScoreOne(client.get(), ExampleRequest(1));
  ASSERT_OK(answer);
  EXPECT_EQ(answer->log_probs, ExampleScores(ExampleRequest(1), ExampleInfo()).log_probs);
  EXPECT_EQ(num_calls, 7);
  EXPECT_EQ(client->stats().retries, 6u);
  EXPECT_EQ(client->stats().failures, 0u);
  for (const FakeCall& call : hung) call.finish(grpc::Status::CANCELLED);
}

TEST(OutageTest, InternalErrorIsTriedOnceMore) {
  FakeTeacher teacher;
  teacher.Start();
  auto client = Connected(FastOptions({&teacher}));
  teacher.SetHandler([](FakeCall call) { call.finish({grpc::StatusCode::INTERNAL, "broke"}); });
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), absl::StatusCode::kInternal, "broke");
  EXPECT_EQ(teacher.num_calls(), 2);
}

TEST(OutageTest, PushbackIsHonoured) {
  FakeTeacher teacher;
  teacher.Start();
  auto client = Connected(FastOptions({&teacher}));
  constexpr absl::Duration kPushback = absl::Milliseconds(300);  // 15 times the longest pause
  std::atomic<int> num_calls = 0;
  absl::Time refused_at, came_back_at;
  teacher.SetHandler([&](FakeCall call) {
    if (++num_calls == 1) {
      refused_at = absl::Now();
      call.context->AddTrailingMetadata(kRetryPushbackKey, "300");
      return call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full"});
    }
    came_back_at = absl::Now();
    teacher.AnswerRight(call);
  });
  EXPECT_OK(ScoreOne(client.get(), ExampleRequest(1)));
  EXPECT_EQ(num_calls, 2);
  EXPECT_GE(came_back_at - refused_at, kPushback);
}

TEST(OutageTest, NegativePushbackMeansNever) {
  FakeTeacher teacher;
  teacher.Start();
  auto client = Connected(FastOptions({&teacher}));
  teacher.SetHandler([](FakeCall call) {
    call.context->AddTrailingMetadata(kRetryPushbackKey, "-1");
    call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "go away"});
  });
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), absl::StatusCode::kResourceExhausted,
               "go away");
  EXPECT_EQ(teacher.num_calls(), 1);
}

TEST(OutageTest, EndlessOutageUsesUpTheBudget) {
  FakeTeacher teacher;
  teacher.Start();
  TeacherClientOptions options = FastOptions({&teacher});
  options.outage_budget = absl::Milliseconds(300);
  options.max_in_flight_per_endpoint = 2;
  auto client = Connected(options);
  teacher.SetHandler([](FakeCall call) { call.finish({grpc::StatusCode::UNAVAILABLE, "no"}); });
  const absl::Time start = absl::Now();
  // Also those that never got their turn are given up.
  const auto answers = ScoreAll(client.get(), Requests(20));
  EXPECT_GE(absl::Now() - start, options.outage_budget);
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  for (const auto& answer : answers) {
    EXPECT_ERROR(answer, absl::StatusCode::kUnavailable, "outage_budget 300ms is used up");
  }
  EXPECT_ERROR(answers[0], absl::StatusCode::kUnavailable, "no");
  EXPECT_TRUE(client->stats().waiting);
  EXPECT_EQ(client->stats().failures, 20u);
  teacher.SetHandler(nullptr);
  EXPECT_OK(ScoreOne(client.get(), ExampleRequest(1)));
  EXPECT_FALSE(client->stats().waiting);
}

TEST(OutageTest, HungTeacherUsesUpTheBudget) {
  FakeTeacher teacher;
  teacher.Start();
  TeacherClientOptions options = FastOptions({&teacher});
  options.request_timeout = absl::Milliseconds(50);
  options.outage_budget = absl::Milliseconds(150);
  auto client = Connected(options);
  teacher.Hold();
  EXPECT_ERROR(ScoreOne(client.get(), ExampleRequest(1)), absl::StatusCode::kUnavailable,
               "outage_budget");
}

TEST(OutageTest, RequestsSurviveARestart) {
  FakeTeacher teacher;
  teacher.Start();
  const int port = teacher.port();
  TeacherClientOptions options = FastOptions({&teacher});
  options.max_in_flight_per_endpoint = 8;
  auto client = Connected(options);
  teacher.Hold();
  constexpr int kCount = 100;
  absl::BlockingCounter open(kCount);
  std::atomic<int> num_right = 0;
  for (const TeacherRequest& request : Requests(kCount)) {
    client->Score(request, [&, request](absl::StatusOr<TeacherScores> scores) {
      EXPECT_OK(scores);
      num_right += scores.ok() && scores->ids == ExampleScores(request, ExampleInfo()).ids;
      open.DecrementCount();
    });
  }
  for (const FakeCall& call : teacher.TakeHeld(8)) teacher.AnswerRight(call);
  // Stops with requests on the wire, which it will never answer.
  while (client->stats().in_flight == 0) absl::SleepFor(absl::Milliseconds(1));
  teacher.Stop();
  while (!client->stats().waiting) absl::SleepFor(absl::Milliseconds(1));
  teacher.Start(port);
  open.Wait();
  EXPECT_EQ(num_right, kCount);
  EXPECT_GE(client->stats().retries, 1u);
  EXPECT_EQ(client->stats().failures, 0u);
}

TEST(OutageTest, OneOfTwoDies) {
  FakeTeacher a, b;
  a.Start();
  b.Start();
  TeacherClientOptions options = FastOptions({&a, &b});
  options.max_in_flight_per_endpoint = 8;
  auto client = Connected(options);
  a.Hold();
  constexpr int kCount = 200;
  absl::BlockingCounter open(kCount);
  std::atomic<int> num_ok = 0;
  for (const TeacherRequest& request : Requests(kCount)) {
    client->Score(request, [&](absl::StatusOr<TeacherScores> scores) {
      num_ok += scores.ok();
      open.DecrementCount();
    });
  }
  for (const FakeCall& call : a.TakeHeld(8)) call.finish({grpc::StatusCode::UNAVAILABLE, "dying"});
  a.Stop();
  open.Wait();
  EXPECT_EQ(num_ok, kCount);
  EXPECT_FALSE(client->stats().waiting);
  EXPECT_GE(b.num_calls(), kCount - 8);
}

TEST(OutageTest, LoadGoesToBoth) {
  FakeTeacher a, b;
  a.Start();
  b.Start();
  auto client = Connected(FastOptions({&a, &b}));
  a.Hold();
  b.Hold();
  absl::BlockingCounter open(40);
  for (const TeacherRequest& request : Requests(40)) {
    client->Score(request, [&](absl::StatusOr<TeacherScores> scores) {
      EXPECT_OK(scores);
      open.DecrementCount();
    });
  }
  const auto held_a = a.TakeHeld(20), held_b = b.TakeHeld(20);
  EXPECT_EQ(held_a.size(), 20u);
  EXPECT_EQ(held_b.size(), 20u);
  for (const FakeCall& call : held_a) a.AnswerRight(call);
  for (const FakeCall& call : held_b) b.AnswerRight(call);
  open.Wait();
}

}  // namespace
}  // namespace taopd
