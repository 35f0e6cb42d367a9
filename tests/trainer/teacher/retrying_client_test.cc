// The retry rules, without sockets: a transport that a test steps by hand.
#include "trainer/teacher/retrying_client.h"

#include <absl/synchronization/blocking_counter.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <optional>

#include "tests/support/status_matchers.h"
#include "tests/trainer/teacher/example_scores.h"

namespace taopd::testing {
namespace {

// Answers each attempt by a function, on the thread that starts it (as a transport may).
class StepTransport final : public ScoreTransport {
 public:
  using Rule = std::function<Result(size_t endpoint, const TeacherRequest& request)>;
  struct Held {
    size_t endpoint;
    TeacherRequest request;
    absl::Duration timeout;
    std::function<void(Result)> done;
  };

  absl::Status Check(const TeacherRequest& request, const TeacherInfo&) const override {
    return request.request_id == "forbidden" ? InvalidArgument("not by this transport")
                                             : absl::OkStatus();
  }
  void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
             absl::Duration timeout, std::function<void(Result)> done) override {
    Rule rule;
    {
      absl::MutexLock lock(&mutex_);
      ++num_attempts_[endpoint];
      if (!rule_ && !is_cancelled_) {
        held_.push_back({endpoint, request, timeout, std::move(done)});
        return;
      }
      rule = is_cancelled_ ? [](size_t, const TeacherRequest&) { return Cancelled(); } : rule_;
    }
    done(rule(endpoint, request));
  }
  void CancelAll() override {
    std::vector<Held> held;
    {
      absl::MutexLock lock(&mutex_);
      is_cancelled_ = true;
      held.swap(held_);
    }
    for (Held& call : held) call.done(Cancelled());
  }
  absl::StatusOr<TeacherInfo> Ask(size_t, absl::Duration) override { return TeacherInfo(); }
  // Null: calls are held.
  void SetRule(Rule rule) {
    absl::MutexLock lock(&mutex_);
    rule_ = std::move(rule);
  }
  std::vector<Held> TakeHeld(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_.size() >= count; };
    mutex_.Await(absl::Condition(&enough));
    return std::exchange(held_, {});
  }
  int64_t num_attempts(size_t endpoint) {
    absl::MutexLock lock(&mutex_);
    return num_attempts_[endpoint];
  }

 private:
  static Result Cancelled() { return {absl::CancelledError("cancelled"), std::nullopt}; }

  absl::Mutex mutex_;
  Rule rule_ ABSL_GUARDED_BY(mutex_);
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);
  std::map<size_t, int64_t> num_attempts_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

ScoreTransport::Result Right(const TeacherRequest& request) {
  return {ExampleScores(request, ExampleInfo()), std::nullopt};
}
ScoreTransport::Result Fail(absl::StatusCode code) {
  return {absl::Status(code, "as told"), std::nullopt};
}

RetryOptions FastOptions(size_t num_endpoints) {
  RetryOptions options;
  for (size_t i = 0; i < num_endpoints; ++i) options.endpoints.push_back(Concat("e", i));
  options.request_timeout = absl::Seconds(20);
  options.outage_budget = absl::Seconds(20);
  options.initial_backoff = absl::Milliseconds(1);
  options.max_backoff = absl::Milliseconds(8);
  return options;
}

class RetryingClientTest : public ::testing::Test {
 protected:
  void Start(const RetryOptions& options, Clock* clock = Clock::Real()) {
    client_.emplace(options, &transport_, clock);
    client_->SetInfo(ExampleInfo());
  }
  std::vector<absl::StatusOr<TeacherScores>> Score(int count) {
    return ScoreAll(&*client_, ExampleRequests(count));
  }
  // Asks for the scores of ExampleRequest(0).
  std::future<absl::StatusOr<TeacherScores>> Ask() {
    auto answer = std::make_shared<std::promise<absl::StatusOr<TeacherScores>>>();
    client_->Score(ExampleRequest(0), [answer](absl::StatusOr<TeacherScores> scores) {
      answer->set_value(std::move(scores));
    });
    return answer->get_future();
  }

  StepTransport transport_;
  std::optional<RetryingClient> client_;
};

TEST_F(RetryingClientTest, OtherEndpointComesFirst) {
  std::vector<size_t> order;  // one request: one attempt after the other
  transport_.SetRule([&](size_t endpoint, const TeacherRequest& request) {
    order.push_back(endpoint);
    return order.size() < 5 ? Fail(kResourceExhausted) : Right(request);
  });
  Start(FastOptions(2));
  EXPECT_OK(Score(1)[0]);
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 0, 1, 0}));
}

TEST_F(RetryingClientTest, OutageCostsOneProbePerPause) {
  constexpr int kCount = 2000;
  std::atomic<int> num_left = 20;  // failed attempts of the outage, after the first burst
  std::atomic<bool> is_down = true;
  transport_.SetRule([&](size_t, const TeacherRequest& request) {
    if (!is_down) return Right(request);
    if (--num_left <= 0) is_down = false;
    return Fail(kUnavailable);
  });
  RetryOptions options = FastOptions(1);
  options.max_in_flight_per_endpoint = 1 << 20;
  Start(options);
  for (const auto& answer : Score(kCount)) EXPECT_OK(answer);
  // Without the closed endpoint, each of the 2000 requests would have failed at least once.
  EXPECT_EQ(transport_.num_attempts(0), kCount + 20);
  EXPECT_EQ(client_->stats().retries, 20u);
}

TEST_F(RetryingClientTest, WaitingIsWhenEveryEndpointFails) {
  Start(FastOptions(2));
  EXPECT_FALSE(client_->stats().waiting);
  client_->SetReachability(0, absl::UnavailableError("x"));
  EXPECT_FALSE(client_->stats().waiting);
  client_->SetReachability(1, absl::UnavailableError("x"));
  EXPECT_TRUE(client_->stats().waiting);
  client_->SetReachability(0, absl::OkStatus());
  EXPECT_FALSE(client_->stats().waiting);
}

TEST_F(RetryingClientTest, BudgetCountsFromTheFirstFailure) {
  ManualClock clock;
  RetryOptions options = FastOptions(1);
  options.outage_budget = absl::Minutes(30);
  options.request_timeout = absl::Hours(2);
  // Pauses of the manual clock never end, so each attempt here is the first one after a success.
  Start(options, &clock);
  auto answer = Ask();
  auto held = transport_.TakeHeld(1);
  EXPECT_EQ(held[0].timeout, absl::Hours(2));
  clock.Advance(absl::Hours(1));  // a long first attempt is not held against the request
  held[0].done(Fail(kUnavailable));
  clock.Advance(absl::Minutes(10));
  client_->SetReachability(0, absl::OkStatus());  // wakes the client
  held = transport_.TakeHeld(1);
  EXPECT_EQ(held[0].timeout, absl::Minutes(20));  // what is left of the budget
  clock.Advance(absl::Minutes(20));
  held[0].done(Fail(kUnavailable));
  EXPECT_ERROR(answer.get(), kUnavailable,
               "request \"r0\" is given up after 2 failed attempts: outage_budget 30m is used up; "
               "last error: UNAVAILABLE: e0, request \"r0\": as told");
}

TEST_F(RetryingClientTest, RefusalsComeFromTheClientsThread) {
  Start(FastOptions(1));
  TeacherRequest request = ExampleRequest(1);
  request.request_id = "forbidden";
  const std::thread::id caller = std::this_thread::get_id();
  absl::BlockingCounter open(1);
  client_->Score(request, [&](absl::StatusOr<TeacherScores> scores) {
    EXPECT_ERROR(scores, kInvalidArgument, "not by this transport");
    EXPECT_NE(std::this_thread::get_id(), caller);
    open.DecrementCount();
  });
  open.Wait();
  EXPECT_EQ(transport_.num_attempts(0), 0);
}

TEST_F(RetryingClientTest, HugePushbackIsNoReasonToHang) {
  std::atomic<int> num_attempts = 0;
  transport_.SetRule([&](size_t, const TeacherRequest& request) {
    if (++num_attempts > 1) return Right(request);
    return ScoreTransport::Result{absl::ResourceExhaustedError("full"), absl::Hours(1 << 20)};
  });
  RetryOptions options = FastOptions(1);
  options.outage_budget = absl::Milliseconds(50);
  Start(options);
  EXPECT_ERROR(Score(1)[0], kUnavailable,
               "request \"r0\" is given up after 1 failed attempt: outage_budget 50ms");
  EXPECT_OK(Score(1)[0]);
}

// Another revision, a key that is refused, and an endpoint that is down.
TEST_F(RetryingClientTest, AnEndpointThatRefusesIsLeftOutWhileAnotherAnswers) {
  for (const absl::StatusCode code : {kFailedPrecondition, kUnauthenticated, kUnavailable}) {
    StepTransport transport;
    std::atomic<bool> is_right = false;
    transport.SetRule([&](size_t endpoint, const TeacherRequest& request) {
      return endpoint == 0 && !is_right ? Fail(code) : Right(request);
    });
    RetryingClient client(FastOptions(2), &transport, Clock::Real());
    client.SetInfo(ExampleInfo());
    for (const auto& answer : ScoreAll(&client, ExampleRequests(200))) EXPECT_OK(answer);
    const TeacherClientStats stats = client.stats();
    EXPECT_EQ(stats.failures, 0u);
    EXPECT_FALSE(stats.waiting);
    ASSERT_EQ(stats.endpoints.size(), 2u);
    EXPECT_EQ(stats.endpoints[0].name, "e0");
    EXPECT_TRUE(stats.endpoints[0].is_failing);
    EXPECT_EQ(stats.endpoints[0].serves_another_revision, code == kFailedPrecondition);
    EXPECT_GT(stats.endpoints[0].left_out, absl::ZeroDuration());
    EXPECT_EQ(stats.endpoints[0].failures, stats.endpoints[0].attempts);
    EXPECT_FALSE(stats.endpoints[1].is_failing);
    EXPECT_EQ(stats.endpoints[1].attempts, 200u);
    // Once it serves the right one again, a probe takes it back.
    is_right = true;
    while (client.stats().endpoints[0].is_failing) EXPECT_OK(ScoreOne(&client, ExampleRequest(1)));
    EXPECT_FALSE(client.stats().endpoints[0].serves_another_revision);
  }
}

TEST_F(RetryingClientTest, AKeyThatIsRefusedEverywhereIsAnErrorAtOnce) {
  transport_.SetRule([&](size_t endpoint, const TeacherRequest&) {
    return Fail(endpoint == 0 ? kUnauthenticated : kPermissionDenied);
  });
  Start(FastOptions(2));
  EXPECT_EQ(Score(1)[0].status().message().find("given up"), std::string::npos);
  EXPECT_EQ(transport_.num_attempts(0), 1);
  EXPECT_EQ(transport_.num_attempts(1), 1);
  EXPECT_TRUE(client_->stats().waiting);
}

TEST_F(RetryingClientTest, AnotherRevisionEverywhereIsAnError) {
  transport_.SetRule([&](size_t, const TeacherRequest&) { return Fail(kFailedPrecondition); });
  Start(FastOptions(2));
  EXPECT_ERROR(Score(1)[0], kFailedPrecondition, "as told");
}

// One endpoint lies and the other is full: the requests that were lied to wait for the other.
TEST_F(RetryingClientTest, WrongRepliesOfOneEndpointAreOutvoted) {
  transport_.SetRule([&](size_t endpoint, const TeacherRequest& request) {
    return endpoint == 0 ? Fail(kDataLoss) : Right(request);
  });
  RetryOptions options = FastOptions(2);
  options.max_in_flight_per_endpoint = 2;
  Start(options);
  for (const auto& answer : Score(500)) EXPECT_OK(answer);
  transport_.SetRule([&](size_t, const TeacherRequest&) { return Fail(kDataLoss); });
  EXPECT_ERROR(Score(1)[0], kDataLoss, "as told");
}

TEST_F(RetryingClientTest, ARequestThatWasLiedToWaitsForAnotherEndpoint) {
  RetryOptions options = FastOptions(2);
  options.max_in_flight_per_endpoint = 1;
  Start(options);
  const auto expect_right = [](absl::StatusOr<TeacherScores> scores) { EXPECT_OK(scores); };
  for (int i = 0; i < 2; ++i) client_->Score(ExampleRequest(i), expect_right);
  auto held = transport_.TakeHeld(2);
  ASSERT_EQ(held[0].endpoint, 0u);
  held[0].done(Fail(kDataLoss));
  client_->Score(ExampleRequest(2), expect_right);
  // Endpoint 1 is full, and endpoint 0 is probed with the request that it has not answered yet.
  auto probe = transport_.TakeHeld(1);
  EXPECT_EQ(probe[0].endpoint, 0u);
  EXPECT_EQ(probe[0].request.request_id, "r2");
  held[1].done(Right(held[1].request));
  auto last = transport_.TakeHeld(1);
  EXPECT_EQ(last[0].endpoint, 1u);
  EXPECT_EQ(last[0].request.request_id, "r0");
  last[0].done(Right(last[0].request));
  probe[0].done(Right(probe[0].request));
}

TEST_F(RetryingClientTest, ASlowEndpointIsHedged) {
  RetryOptions options = FastOptions(2);
  options.hedge_after = absl::Milliseconds(5);
  Start(options);
  std::atomic<int> num_answers = 0;
  absl::BlockingCounter open(1);
  client_->Score(ExampleRequest(0), [&](absl::StatusOr<TeacherScores> scores) {
    EXPECT_OK(scores);
    if (++num_answers == 1) open.DecrementCount();
  });
  auto held = transport_.TakeHeld(2);
  ASSERT_EQ(held.size(), 2u);
  EXPECT_NE(held[0].endpoint, held[1].endpoint);
  EXPECT_EQ(held[0].request.request_id, held[1].request.request_id);
  held[1].done(Right(held[1].request));
  open.Wait();
  held[0].done(Right(held[0].request));  // too late
  EXPECT_EQ(num_answers, 1);
  const TeacherClientStats stats = client_->stats();
  EXPECT_EQ(stats.hedges, 1u);
  EXPECT_EQ(stats.hedges_won, 1u);
  EXPECT_EQ(stats.retries, 0u);
  EXPECT_EQ(stats.in_flight, 0);
}

TEST_F(RetryingClientTest, AFailedHedgeLeavesTheFirstAttempt) {
  RetryOptions options = FastOptions(2);
  options.hedge_after = absl::Milliseconds(5);
  Start(options);
  // The first kind is never retried, the second one is.
  for (const absl::StatusCode code : {kInvalidArgument, kDataLoss}) {
    auto answer = Ask();
    auto held = transport_.TakeHeld(2);
    held[1].done(Fail(code));
    held[0].done(Right(held[0].request));
    EXPECT_OK(answer.get());
  }
  EXPECT_EQ(client_->stats().hedges, 2u);
  EXPECT_EQ(client_->stats().hedges_won, 0u);
  EXPECT_EQ(transport_.num_attempts(0) + transport_.num_attempts(1), 4);
}

TEST_F(RetryingClientTest, AFailureThatIsNeverRetriedCountsIfBothAttemptsFail) {
  RetryOptions options = FastOptions(2);
  options.hedge_after = absl::Milliseconds(5);
  Start(options);
  auto answer = Ask();
  auto held = transport_.TakeHeld(2);
  held[1].done(Fail(kInvalidArgument));
  held[0].done(Fail(kUnavailable));
  EXPECT_ERROR(answer.get(), kInvalidArgument, "as told");
  EXPECT_EQ(transport_.num_attempts(0) + transport_.num_attempts(1), 2);
}

// Many threads ask while endpoints fail at random and the client is destroyed in the middle: every
// request is answered exactly once.
TEST_F(RetryingClientTest, EveryRequestIsAnsweredOnce) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    StepTransport transport;
    absl::Mutex mutex;
    RandomStream random(seed);
    transport.SetRule([&](size_t, const TeacherRequest& request) {
      absl::MutexLock lock(&mutex);
      const uint64_t outcome = random.NextBelow(4);
      if (outcome > 1) return Right(request);
      return Fail(outcome == 0 ? kUnavailable : kResourceExhausted);
    });
    constexpr int kThreads = 4, kCount = 200;
    std::vector<std::atomic<int>> num_answers(kThreads * kCount);
    {
      RetryOptions options = FastOptions(3);
      if (seed % 2 == 1) options.hedge_after = absl::Microseconds(1);
      RetryingClient client(options, &transport, Clock::Real());
      client.SetInfo(ExampleInfo());
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
          for (int i = 0; i < kCount; ++i) {
            client.Score(ExampleRequest(i), [&, t, i](absl::StatusOr<TeacherScores>) {
              ++num_answers[t * kCount + i];
            });
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
    }
    for (const auto& count : num_answers) ASSERT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace taopd::testing
