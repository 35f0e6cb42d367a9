// Scores over a real socket: right numbers, order, limits, replies that must be refused, and
// teachers that fail, come back or ask for patience.
#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "common/wire/teacher_protocol.h"
#include "tests/support/process.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"
#include "tests/trainer/teacher/fake_teacher.h"

namespace taopd::testing {
namespace {

class GrpcClientTest : public ::testing::Test {
 protected:
  void SetUp() override { teacher_.Start(); }
  void Connect(const std::function<void(TeacherClientOptions*)>& change = [](auto*) {}) {
    TeacherClientOptions options = FastOptions({&teacher_});
    change(&options);
    ASSERT_OK_AND_ASSIGN(client_, MakeNetworkTeacherClient(options));
    ASSERT_OK(client_->Connect(absl::Seconds(20)));
  }

  FakeTeacher teacher_;
  std::unique_ptr<TeacherClient> client_;
};

void ExpectEqual(const TeacherScores& actual, const TeacherScores& expected) {
  ExpectSameBits(actual, expected);
  EXPECT_EQ(actual.revision, expected.revision);
}

TEST_F(GrpcClientTest, NumbersArriveAsTheyWereSent) {
  Connect();
  std::vector<TeacherRequest> requests;
  for (int i = 0; i < 60; ++i) requests.push_back(ExampleRequest(i, 4 + i, i % 17));
  const auto answers = ScoreAll(client_.get(), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(answers[i]);
    ExpectEqual(*answers[i], ExampleScores(requests[i], ExampleInfo()));
  }
  const TeacherClientStats stats = client_->stats();
  EXPECT_EQ(stats.requests, 60u);
  EXPECT_EQ(stats.retries, 0u);
  EXPECT_EQ(stats.failures, 0u);
  EXPECT_EQ(stats.in_flight, 0);
  EXPECT_EQ(stats.queued, 0);
}

TEST_F(GrpcClientTest, CandidatesDenseRowsAndEntropiesArrive) {
  Connect();
  // The first try is answered with a damaged tail, which is asked for once more.
  std::atomic<int> num_tries = 0;
  teacher_.SetHandler([&](FakeCall call) {
    if (++num_tries > 1) return teacher_.AnswerRight(call);
    *call.reply = RightReply(*call.request, ExampleInfo());
    call.reply->set_candidate_log_tail(0, -0.0f);
    call.finish(grpc::Status::OK);
  });
  const TeacherRequest request = FullRequest(7);
  ASSERT_OK_AND_ASSIGN(const auto answer, ScoreOne(client_.get(), request));
  ExpectEqual(answer, ExampleScores(request, ExampleInfo()));
  EXPECT_EQ(answer.dense_log_probs.size(), 9u * 50);
  EXPECT_EQ(num_tries, 2);
  // Dense rows count against the limit of a message: 9 rows of 4 pairs, tail, sampled token,
  // entropy, 5 candidates and their tail, 50 ids, 4 bytes each.
  Connect([](auto* options) { options->max_message_bytes = 2000; });
  EXPECT_ERROR(ScoreOne(client_.get(), request), kInvalidArgument,
               "2412 bytes, above max_message_bytes 2000");
}

TEST_F(GrpcClientTest, RequestSaysWhatIsWanted) {
  teacher_.info.set_supports_temperature(true);
  Connect();
  v1::ScoreRequest seen;
  teacher_.SetHandler([&](FakeCall call) {
    seen = *call.request;
    teacher_.AnswerRight(call);
  });
  TeacherRequest request = ExampleRequest(3);
  request.temperature = 0.7f;
  EXPECT_OK(ScoreOne(client_.get(), request));
  EXPECT_EQ(seen.request_id(), "r3");
  EXPECT_EQ(std::vector<int32_t>(seen.token_ids().begin(), seen.token_ids().end()),
            request.token_ids);
  EXPECT_EQ(seen.score_start(), 3u);
  EXPECT_EQ(seen.top_k(), 4u);
  EXPECT_EQ(seen.temperature(), 0.7f);
  EXPECT_EQ(seen.expected_revision(), "rev-1");
}

TEST_F(GrpcClientTest, AnswersMayComeInAnyOrder) {
  Connect();
  teacher_.Hold();
  constexpr int kCount = 20;
  absl::Mutex mutex;
  std::vector<std::string> order;  // of completion
  absl::BlockingCounter open(kCount);
  for (int i = 0; i < kCount; ++i) {
    const TeacherRequest request = ExampleRequest(i);
    client_->Score(request, [&, request](absl::StatusOr<TeacherScores> scores) {
      EXPECT_OK(scores);
      if (scores.ok()) ExpectEqual(*scores, ExampleScores(request, ExampleInfo()));
      {
        absl::MutexLock lock(&mutex);
        order.push_back(request.request_id);
      }
      open.DecrementCount();
    });
  }
  std::vector<FakeCall> held = teacher_.TakeHeld(kCount);
  EXPECT_EQ(client_->stats().in_flight, kCount);
  std::vector<std::string> expected;
  for (size_t i = held.size(); i-- > 0;) {
    expected.push_back(held[i].request->request_id());
    teacher_.AnswerRight(held[i]);
    absl::MutexLock lock(&mutex);
    auto arrived = [&] { return order.size() == expected.size(); };
    mutex.Await(absl::Condition(&arrived));
  }
  open.Wait();
  EXPECT_EQ(order, expected);
}

TEST_F(GrpcClientTest, ManyRequestsKeepTheBound) {
  Connect([](auto* options) { options->max_in_flight_per_endpoint = 3; });
  teacher_.Hold();
  constexpr int kCount = 500;
  absl::BlockingCounter open(kCount);
  std::atomic<int> num_ok = 0;
  for (int i = 0; i < kCount; ++i) {
    client_->Score(ExampleRequest(i), [&](absl::StatusOr<TeacherScores> scores) {
      num_ok += scores.ok();
      open.DecrementCount();
    });
  }
  EXPECT_EQ(client_->stats().in_flight, 3);
  EXPECT_EQ(client_->stats().queued, kCount - 3);
  size_t num_answered = 0;
  while (num_answered < kCount) {
    const std::vector<FakeCall> held = teacher_.TakeHeld(1);
    EXPECT_LE(client_->stats().in_flight, 3);
    EXPECT_LE(held.size(), 3u);
    num_answered += held.size();
    for (const FakeCall& call : held) teacher_.AnswerRight(call);
  }
  open.Wait();
  EXPECT_EQ(num_ok, kCount);
  EXPECT_EQ(teacher_.num_calls(), kCount);
}

TEST_F(GrpcClientTest, DoneMayAskForMore) {
  Connect();
  absl::Notification finished;
  int left = 50;  // touched by one `done` after the other
  std::function<void(absl::StatusOr<TeacherScores>)> done = [&](absl::StatusOr<TeacherScores> s) {
    EXPECT_OK(s);
    if (--left == 0) return finished.Notify();
    client_->Score(ExampleRequest(left), done);
  };
  client_->Score(ExampleRequest(0), done);
  finished.WaitForNotification();
}

TEST_F(GrpcClientTest, BadRequestsAreNotSent) {
  ASSERT_OK_AND_ASSIGN(client_, MakeNetworkTeacherClient(FastOptions({&teacher_})));
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kFailedPrecondition, "before Connect");
  Connect([](auto* options) { options->max_message_bytes = 300; });
  TeacherRequest request = ExampleRequest(1, 12, 17);
  EXPECT_ERROR(ScoreOne(client_.get(), request), kInvalidArgument,
               "request \"r1\": top_k 17 is outside [0, 16]");
  // 9 rows of 4 + 1 pairs of 8 bytes.
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kInvalidArgument,
               "360 bytes, above max_message_bytes 300");
  EXPECT_EQ(teacher_.num_calls(), 0);
  EXPECT_EQ(client_->stats().failures, 2u);
}

TEST_F(GrpcClientTest, ReplyAboveTheLimitIsNotAskedForAgain) {
  Connect([](auto* options) { options->max_message_bytes = 1000; });
  teacher_.SetHandler([&](FakeCall call) {
    call.reply->set_request_id(std::string(2000, 'x'));
    call.finish(grpc::Status::OK);
  });
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kResourceExhausted, "larger than max");
  EXPECT_EQ(teacher_.num_calls(), 1);
}

// Damage of a reply, and what the error must say. DamagedScoresTest has every kind.
struct Damage {
  const char* says;
  void (*apply)(v1::ScoreResponse*);
};

class DamagedReplyTest : public GrpcClientTest, public ::testing::WithParamInterface<Damage> {};

TEST_P(DamagedReplyTest, IsAskedForOnceMoreAndThenRefused) {
  Connect();
  std::atomic<int> num_damaged = 1 << 30;
  teacher_.SetHandler([&](FakeCall call) {
    *call.reply = RightReply(*call.request, ExampleInfo());
    if (--num_damaged >= 0) GetParam().apply(call.reply);
    call.finish(grpc::Status::OK);
  });
  const auto answer = ScoreOne(client_.get(), ExampleRequest(1));
  EXPECT_ERROR(answer, kDataLoss, GetParam().says);
  EXPECT_ERROR(answer, kDataLoss, teacher_.endpoint());
  EXPECT_EQ(teacher_.num_calls(), 2);
  // Damaged once only: the second reply counts.
  num_damaged = 1;
  EXPECT_OK(ScoreOne(client_.get(), ExampleRequest(2)));
  EXPECT_EQ(teacher_.num_calls(), 4);
}

INSTANTIATE_TEST_SUITE_P(Each, DamagedReplyTest,
                         ::testing::Values(Damage{"request_id \"other\" instead of \"r",
                                                  [](auto* r) { r->set_request_id("other"); }},
                                           Damage{"is outside [0, 50)",
                                                  [](auto* r) { r->set_ids(0, 0xffffffffu); }},
                                           Damage{"have the mass", [](auto* r) {
                                                    r->set_log_tail(0, r->log_tail(0) - 5);
                                                  }}));

TEST_F(GrpcClientTest, ErrorsThatCannotPassAreNotTriedAgain) {
  Connect();
  const grpc::StatusCode codes[] = {
      grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::FAILED_PRECONDITION,
      grpc::StatusCode::UNAUTHENTICATED,  grpc::StatusCode::PERMISSION_DENIED,
      grpc::StatusCode::UNIMPLEMENTED,    grpc::StatusCode::OUT_OF_RANGE};
  int64_t num_calls = 0;
  for (const grpc::StatusCode code : codes) {
    teacher_.SetHandler([&](FakeCall call) { call.finish(grpc::Status(code, "because")); });
    EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), static_cast<absl::StatusCode>(code),
                 "because");
    EXPECT_EQ(teacher_.num_calls(), ++num_calls);
  }
  EXPECT_FALSE(client_->stats().waiting);
}

TEST_F(GrpcClientTest, DestructionAnswersEverything) {
  Connect([](auto* options) { options->max_in_flight_per_endpoint = 4; });
  teacher_.Hold();
  std::atomic<int> num_cancelled = 0;
  for (int i = 0; i < 10; ++i) {
    client_->Score(ExampleRequest(i), [&](absl::StatusOr<TeacherScores> scores) {
      num_cancelled += scores.status().code() == kCancelled;
    });
  }
  std::vector<FakeCall> held = teacher_.TakeHeld(4);
  client_.reset();
  EXPECT_EQ(num_cancelled, 10);
  for (const FakeCall& call : held) call.finish(grpc::Status::CANCELLED);
}

// ---- Outages ------------------------------------------------------------------------------------

constexpr absl::Duration kDeadline = absl::Seconds(30);

TEST_F(GrpcClientTest, PassingErrorsAreTriedAgain) {
  // For six answers, however busy the machine is.
  Connect([](auto* options) { options->request_timeout = absl::Seconds(1); });
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

TEST_F(GrpcClientTest, InternalErrorIsTriedOnceMore) {
  Connect();
  teacher_.SetHandler([](FakeCall call) { call.finish({grpc::StatusCode::INTERNAL, "broke"}); });
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kInternal, "broke");
  EXPECT_EQ(teacher_.num_calls(), 2);
}

TEST_F(GrpcClientTest, PushbackIsHonored) {
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

TEST_F(GrpcClientTest, NegativePushbackMeansNever) {
  Connect();
  teacher_.SetHandler([](FakeCall call) {
    call.context->AddTrailingMetadata(kRetryPushbackKey, "-1");
    call.finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "go away"});
  });
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kResourceExhausted, "go away");
  EXPECT_EQ(teacher_.num_calls(), 1);
}

TEST_F(GrpcClientTest, EndlessOutageUsesUpTheBudget) {
  constexpr absl::Duration kBudget = absl::Milliseconds(300);
  Connect([=](auto* options) {
    options->outage_budget = kBudget;
    options->max_in_flight_per_endpoint = 2;
  });
  teacher_.SetHandler([](FakeCall call) { call.finish({grpc::StatusCode::UNAVAILABLE, "no"}); });
  const absl::Time start = absl::Now();
  // Also those that never got their turn are given up.
  const auto answers = ScoreAll(client_.get(), ExampleRequests(20));
  EXPECT_GE(absl::Now() - start, kBudget);
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

TEST_F(GrpcClientTest, HungTeacherUsesUpTheBudget) {
  Connect([](auto* options) {
    options->request_timeout = absl::Milliseconds(50);
    options->outage_budget = absl::Milliseconds(150);
  });
  teacher_.Hold();
  EXPECT_ERROR(ScoreOne(client_.get(), ExampleRequest(1)), kUnavailable, "outage_budget");
}

TEST_F(GrpcClientTest, RequestsSurviveARestart) {
  const int port = teacher_.port();
  Connect([](auto* options) { options->max_in_flight_per_endpoint = 8; });
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
