// The engine over workers that follow a script: what it does about every error of the contract.
#include "trainer/rollout/endpoints/remote_rollout_engine.h"

#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>

#include <optional>

#include "tests/support/process.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// The response of every worker: it depends on the seed alone.
WorkerRollout AnswerTo(const RolloutRequest& request, const std::string& version) {
  WorkerRollout answer;
  answer.response_ids = {static_cast<int32_t>(request.sampling.seed % 50), 3};
  answer.behavior_log_probs = {-1.0f, -2.0f};
  answer.finish = FinishReason::kStop;
  answer.version = version;
  return answer;
}

class ScriptedWorker final : public RolloutWorker {
 public:
  using OnGenerate = std::function<absl::StatusOr<WorkerRollout>(
      const RolloutRequest& request, const PolicyWeights& weights, const std::stop_token& stop)>;

  explicit ScriptedWorker(std::string address) : address_(std::move(address)) {}
  const std::string& address() const override { return address_; }
  absl::Status Check(const RolloutNeeds&, const std::stop_token&) override {
    if (on_check) on_check();
    absl::MutexLock lock(&mutex_);
    ++num_checks;
    return num_checks <= fails_checks ? check_error : absl::OkStatus();
  }
  bool needs_probe() const override { return compares_probe; }
  absl::Status SetWeights(const PolicyWeights& weights, const std::stop_token&) override {
    if (on_set) on_set(weights);
    absl::MutexLock lock(&mutex_);
    versions.push_back(weights.version);
    return static_cast<int>(versions.size()) <= fails_sets ? set_error : absl::OkStatus();
  }
  absl::StatusOr<WorkerRollout> Generate(const RolloutRequest& request,
                                         const PolicyWeights& weights,
                                         const std::stop_token& stop) override {
    ++num_generated;
    if (on_generate) return on_generate(request, weights, stop);
    return AnswerTo(request, weights.version);
  }
  std::vector<std::string> Versions() {
    absl::MutexLock lock(&mutex_);
    return versions;
  }

  int fails_checks = 0, fails_sets = 0;
  absl::Status check_error = absl::UnavailableError("not there");
  absl::Status set_error = absl::DataLossError("damaged");
  OnGenerate on_generate;
  std::function<void()> on_check;
  std::function<void(const PolicyWeights& weights)> on_set;
  bool compares_probe = false;
  std::atomic<int> num_generated = 0;

 private:
  const std::string address_;
  absl::Mutex mutex_;
  int num_checks = 0;
  std::vector<std::string> versions;
};

std::shared_ptr<const PolicyWeights> Weights(int64_t step, const std::string& name = "") {
  auto weights = std::make_shared<PolicyWeights>();
  weights->step = step;
  weights->version = Concat("step-", step, name);
  return weights;
}

// A thread that has answered lets go of the weights a moment later.
void ExpectExpires(const std::weak_ptr<const PolicyWeights>& weights) {
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return weights.expired(); }));
}

// Counts how often the engine looks at the time.
class CountingClock final : public Clock {
 public:
  absl::Time Now() override {
    ++num_looks;
    return Clock::Real()->Now();
  }
  void SleepFor(absl::Duration duration) override { Clock::Real()->SleepFor(duration); }

  std::atomic<int> num_looks = 0;
};

// Collects the answers of one batch.
class Batch {
 public:
  Batch(RemoteRolloutEngine* engine, int64_t size, int64_t version) : answers_(size) {
    std::vector<RolloutRequest> requests(size);
    for (int64_t i = 0; i < size; ++i) {
      requests[i].prompt_ids = {1, static_cast<int32_t>(i)};
      requests[i].sampling.seed = static_cast<uint64_t>(i);
      requests[i].policy_version = version;
    }
    engine->Generate(std::move(requests), [this](int64_t index, absl::StatusOr<Rollout> rollout) {
      absl::MutexLock lock(&mutex_);
      EXPECT_FALSE(answers_[index].has_value()) << "answered twice";
      answers_[index] = std::move(rollout);
      ++num_;
    });
  }
  std::vector<absl::StatusOr<Rollout>> Wait() {
    absl::MutexLock lock(&mutex_);
    const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return num_ == static_cast<int64_t>(answers_.size());
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(60)));
    std::vector<absl::StatusOr<Rollout>> answers;
    for (auto& one : answers_) answers.push_back(one.value_or(absl::UnknownError("no answer")));
    return answers;
  }
  // Every response arrived and is that of its seed.
  void ExpectWhole(int64_t version) {
    const auto answers = Wait();
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_OK(answers[i]);
      EXPECT_EQ(answers[i]->response_ids[0], static_cast<int32_t>(i % 50));
      EXPECT_EQ(answers[i]->policy_version, version);
      EXPECT_EQ(answers[i]->prompt_ids[1], static_cast<int32_t>(i));
    }
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::optional<absl::StatusOr<Rollout>>> answers_;
  int64_t num_ = 0;
};

class RemoteRolloutEngineTest : public ::testing::Test {
 protected:
  ScriptedWorker* Add(const std::string& address) {
    auto worker = std::make_unique<ScriptedWorker>(address);
    ScriptedWorker* const added = worker.get();
    workers_.push_back(std::move(worker));
    return added;
  }
  RemoteRolloutEngine* Start() {
    options_.max_in_flight = 2;
    options_.first_pause = options_.max_pause = absl::Milliseconds(1);
    const RolloutNeeds needs = {.vocab_size = 100};
    engine_ = std::make_unique<RemoteRolloutEngine>(std::move(workers_), needs, options_, clock_);
    return engine_.get();
  }
  // Starts the engine and gives it the weights of a step.
  RemoteRolloutEngine* StartWith(int64_t step) {
    RemoteRolloutEngine* const engine = Start();
    engine->SetWeights(Weights(step));
    return engine;
  }
  // Answers with an error if `fails` is true of the request.
  static void FailIf(ScriptedWorker* worker, std::function<bool(const RolloutRequest&)> fails,
                     const absl::Status& error) {
    worker->on_generate = [=](const auto& request, const auto& weights,
                              const auto&) -> absl::StatusOr<WorkerRollout> {
      if (fails(request)) return error;
      return AnswerTo(request, weights.version);
    };
  }
  static bool HasSeedOne(const RolloutRequest& request) { return request.sampling.seed == 1; }

  RemoteRolloutOptions options_;
  ManualClock manual_clock_;
  Clock* clock_ = Clock::Real();
  std::vector<std::unique_ptr<RolloutWorker>> workers_;
  std::unique_ptr<RemoteRolloutEngine> engine_;
};

TEST_F(RemoteRolloutEngineTest, EveryWorkerGetsEveryVersionAndAPartOfTheWork) {
  ScriptedWorker* const a = Add("a");
  ScriptedWorker* const b = Add("b");
  RemoteRolloutEngine* const engine = Start();
  ASSERT_OK(engine->Connect(absl::Seconds(10)));
  // Each call waits for one of the other worker, so that neither can do all of the work.
  absl::Mutex mutex;
  int in_a = 0, in_b = 0;
  const auto meet = [&](ScriptedWorker* worker, int* mine, const int* other) {
    worker->on_generate = [&mutex, mine, other](const auto& request, const auto& weights,
                                                const auto&) {
      absl::MutexLock lock(&mutex);
      ++*mine;
      const auto has_come = [&] { return *other > 0; };
      mutex.Await(absl::Condition(&has_come));
      return AnswerTo(request, weights.version);
    };
  };
  meet(a, &in_a, &in_b);
  meet(b, &in_b, &in_a);
  for (const int64_t step : {0, 1}) {
    {
      absl::MutexLock lock(&mutex);
      in_a = in_b = 0;
    }
    engine->SetWeights(Weights(step));
    Batch(engine, 40, step).ExpectWhole(step);
  }
  EXPECT_THAT(a->Versions(), ElementsAre("step-0", "step-1"));
  EXPECT_THAT(b->Versions(), ElementsAre("step-0", "step-1"));
  EXPECT_EQ(engine->stats().num_done, 80);
  EXPECT_EQ(engine->stats().num_asked_again, 0);
}

TEST_F(RemoteRolloutEngineTest, TheWorkOfALostWorkerGoesToOthersUntilItAnswersAgain) {
  ScriptedWorker* const a = Add("a");
  Add("b");
  std::atomic<int> num_failures = 3;
  FailIf(
      a, [&](const auto&) { return num_failures-- > 0; }, Unavailable("it was killed"));
  RemoteRolloutEngine* const engine = StartWith(0);
  int64_t step = 0;
  // Until it has failed and come back; each batch is whole meanwhile.
  while (num_failures > 0 || engine->stats().num_reachable < 2) {
    ASSERT_LT(step, 20000) << "it has not come back";
    Batch(engine, 20, step).ExpectWhole(step);
    engine->SetWeights(Weights(++step));
  }
  EXPECT_GE(engine->stats().num_lost, 2);
  EXPECT_EQ(engine->stats().num_left_out, 0);
  EXPECT_GE(engine->stats().num_asked_again, 3);
}

// Check may run beside Generate; SetWeights may not.
TEST_F(RemoteRolloutEngineTest, ALostWorkerIsCheckedBesideItsOpenRequestsButGetsNoWeights) {
  ScriptedWorker* const a = Add("a");
  std::atomic<int> num_checks = 0, num_open = 0;
  std::atomic<bool> may_fail = true;
  absl::Notification both_open, checked_again;
  a->on_check = [&] {
    if (++num_checks == 2) checked_again.Notify();
  };
  a->on_set = [&](const auto&) { EXPECT_EQ(num_open, 0); };
  a->on_generate = [&](const auto& request, const auto& weights,
                       const auto&) -> absl::StatusOr<WorkerRollout> {
    if (++num_open == 2) both_open.Notify();
    both_open.WaitForNotification();
    const bool fails = HasSeedOne(request) && may_fail.exchange(false);
    if (!fails) checked_again.WaitForNotification();
    --num_open;
    if (fails) return Unavailable("it was killed");
    return AnswerTo(request, weights.version);
  };
  Batch(StartWith(0), 2, 0).ExpectWhole(0);
  EXPECT_EQ(a->Versions().size(), 2u);
  engine_.reset();  // its threads use the notifications
}

TEST_F(RemoteRolloutEngineTest, AWorkerWithOtherWeightsGetsThemAgain) {
  ScriptedWorker* const a = Add("a");
  std::atomic<bool> was_restarted = true;
  FailIf(
      a, [&](const auto&) { return was_restarted.exchange(false); },
      absl::AbortedError("others are served"));
  RemoteRolloutEngine* const engine = StartWith(4);
  Batch(engine, 5, 4).ExpectWhole(4);
  EXPECT_THAT(a->Versions(), ElementsAre("step-4", "step-4"));
  EXPECT_EQ(engine->stats().num_lost, 0);
}

// Each version is a directory on a disk, so nobody may hold one that is not needed.
TEST_F(RemoteRolloutEngineTest, AWorkerThatAnswersWithOtherWeightsIsNamedAndHoldsNoVersion) {
  ScriptedWorker* const old = Add("old-worker");
  Add("b");
  old->on_generate = [&](const auto& request, const auto& weights, const auto&) {
    return AnswerTo(request, weights.step == 0 ? weights.version : "step-0");
  };
  RemoteRolloutEngine* const engine = StartWith(0);
  Batch(engine, 20, 0).ExpectWhole(0);
  int64_t step = 0;
  std::weak_ptr<const PolicyWeights> last;
  ::testing::internal::CaptureStderr();
  while (engine->stats().num_left_out == 0) {
    ASSERT_LT(step, 1000) << "it is not left out";
    std::shared_ptr<const PolicyWeights> weights = Weights(++step);
    last = weights;
    engine->SetWeights(std::move(weights));
    Batch(engine, 20, step).ExpectWhole(step);
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("old-worker"));
  EXPECT_THAT(log, HasSubstr("step-0 instead of step-"));
  const int num_before = old->num_generated;
  engine->SetWeights(Weights(++step));
  Batch(engine, 20, step).ExpectWhole(step);
  EXPECT_EQ(old->num_generated, num_before);
  ExpectExpires(last);
}

TEST_F(RemoteRolloutEngineTest, AnswersThatBreakTheProtocolLeaveTheWorkerOut) {
  const std::pair<const char*, std::function<void(WorkerRollout*)>> faults[] = {
      {"outside the vocabulary", [](WorkerRollout* a) { a->response_ids[0] = 100; }},
      {"log-prob of a sampled token", [](WorkerRollout* a) { a->behavior_log_probs[1] = NAN; }},
      {"1 log-probs", [](WorkerRollout* a) { a->behavior_log_probs.pop_back(); }},
      {"0 tokens", [](WorkerRollout* a) { a->response_ids.clear(); }},
      {"1 most probable ids", [](WorkerRollout* a) { a->top_ids = {1}; }}};
  for (const auto& [text, spoil] : faults) {
    SCOPED_TRACE(text);
    ScriptedWorker* const only = Add("the-only-one");
    only->on_generate = [&spoil](const auto& request, const auto& weights, const auto&) {
      WorkerRollout answer = AnswerTo(request, weights.version);
      spoil(&answer);
      return answer;
    };
    const auto answers = Batch(StartWith(0), 2, 0).Wait();
    EXPECT_ERROR(answers[0], kFailedPrecondition, "the-only-one");
    EXPECT_THAT(answers[0].status().ToString(), HasSubstr(text));
    engine_.reset();
    workers_.clear();
  }
}

TEST_F(RemoteRolloutEngineTest, WeightsThatArriveDamagedAreSentAgain) {
  ScriptedWorker* const a = Add("a");
  a->fails_sets = 2;
  Batch(StartWith(0), 3, 0).ExpectWhole(0);
  EXPECT_EQ(a->Versions().size(), 3u);
}

TEST_F(RemoteRolloutEngineTest, ASlowWorkerHoldsOnlyTheVersionThatItReads) {
  ScriptedWorker* const slow = Add("slow");
  Add("b");
  absl::Notification reads, may_end;
  slow->on_set = [&](const PolicyWeights& weights) {
    if (weights.step != 1) return;
    reads.Notify();
    may_end.WaitForNotification();
  };
  RemoteRolloutEngine* const engine = Start();
  ASSERT_OK(engine->Connect(absl::Seconds(10)));
  std::vector<std::weak_ptr<const PolicyWeights>> versions;
  const auto publish = [&](int64_t step) {
    std::shared_ptr<const PolicyWeights> weights = Weights(step);
    versions.push_back(weights);
    engine->SetWeights(std::move(weights));
  };
  publish(0);
  while (slow->Versions().empty()) Batch(engine, 4, 0).ExpectWhole(0);
  publish(1);
  reads.WaitForNotification();
  Batch(engine, 4, 1).ExpectWhole(1);
  publish(2);
  Batch(engine, 4, 2).ExpectWhole(2);
  ExpectExpires(versions[0]);
  EXPECT_FALSE(versions[1].expired());
  may_end.Notify();
  engine_.reset();  // its threads use the notifications
}

// An answer to an open request leaves the worker out while it is checked again.
TEST_F(RemoteRolloutEngineTest, AWorkerThatIsLeftOutStaysSoThoughItsCheckAnswers) {
  ScriptedWorker* const a = Add("a");
  CountingClock clock;
  clock_ = &clock;
  std::atomic<int> num_checks = 0, num_open = 0;
  absl::Notification both_open, is_checked, is_left_out;
  a->on_check = [&] {
    if (++num_checks != 2) return;
    is_checked.Notify();
    is_left_out.WaitForNotification();
  };
  a->on_generate = [&](const auto& request, const auto&,
                       const auto&) -> absl::StatusOr<WorkerRollout> {
    if (++num_open == 2) both_open.Notify();
    both_open.WaitForNotification();
    if (HasSeedOne(request)) return Unavailable("it was killed");
    is_checked.WaitForNotification();
    return AnswerTo(request, "another");
  };
  RemoteRolloutEngine* const engine = StartWith(0);
  for (const auto& answer : Batch(engine, 2, 0).Wait())
    EXPECT_ERROR(answer, kFailedPrecondition, "another instead of step-0");
  const int num_looks = clock.num_looks;
  is_left_out.Notify();
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] { return clock.num_looks > num_looks; }));
  EXPECT_EQ(engine->stats().num_left_out, 1);
  engine_.reset();  // its threads use the clock and the notifications
}

TEST_F(RemoteRolloutEngineTest, AProbeIsNeededIfOneWorkerComparesIt) {
  Add("a");
  Add("b");
  EXPECT_FALSE(Start()->needs_probe());
  engine_.reset();
  workers_.clear();
  Add("a");
  Add("b")->compares_probe = true;
  EXPECT_TRUE(Start()->needs_probe());
}

TEST_F(RemoteRolloutEngineTest, WithoutAnyWorkerTheRequestsFailAfterTheBudget) {
  ScriptedWorker* const a = Add("a");
  a->fails_checks = 1 << 30;
  clock_ = &manual_clock_;
  RemoteRolloutEngine* const engine = Start();
  // The worker's thread may not have asked yet.
  absl::Status status;
  EXPECT_TRUE(PollUntil(absl::Seconds(10), [&] {
    status = engine->Connect(absl::Milliseconds(1));
    return status.message().find("a: not there") != std::string::npos;
  }));
  EXPECT_ERROR(status, kUnavailable, "no answer within 1ms");
  engine->SetWeights(Weights(0));
  Batch first(engine, 3, 0);
  manual_clock_.Advance(options_.outage_budget);
  Batch second(engine, 1, 0);
  EXPECT_EQ(engine->stats().num_unfinished, 4) << "the budget is not used up yet";
  manual_clock_.Advance(absl::Milliseconds(1));
  for (Batch* batch : {&first, &second}) {
    for (const auto& answer : batch->Wait()) EXPECT_ERROR(answer, kUnavailable, "a: not there");
  }
}

TEST_F(RemoteRolloutEngineTest, AWorkerThatCanNeverBeUsedIsRefusedAtTheStart) {
  Add("a");
  ScriptedWorker* const b = Add("b");
  b->fails_checks = 1;
  b->check_error = absl::FailedPreconditionError("vocabulary 5 is not the student's 6");
  EXPECT_ERROR(Start()->Connect(absl::Seconds(10)), kFailedPrecondition, "b: vocabulary 5");
}

// A request is at fault, breaks every worker, or finds other weights each time: two runs that share
// a worker would replace each other's weights forever.
TEST_F(RemoteRolloutEngineTest, ARequestThatNobodyAnswersFailsAlone) {
  struct Case {
    std::vector<const char*> workers;
    absl::Status error;
    absl::StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {{"a"}, InvalidArgument("too long"), kInvalidArgument, "a: too long"},
      {{"a", "b"}, Internal("a NaN"), kInternal, "asked 5 times: a NaN"},
      {{"a"}, absl::DeadlineExceededError("x"), kDeadlineExceeded, "rollout.timeout_s each: x"},
      {{"a"}, absl::AbortedError("x"), kFailedPrecondition, "a, asked 20 times, has other"}};
  for (const Case& c : cases) {
    for (const char* address : c.workers) FailIf(Add(address), HasSeedOne, c.error);
    RemoteRolloutEngine* const engine = StartWith(0);
    const auto answers = Batch(engine, 3, 0).Wait();
    EXPECT_OK(answers[0]);
    EXPECT_ERROR(answers[1], c.code, c.message);
    EXPECT_OK(answers[2]);
    EXPECT_EQ(engine->stats().num_left_out, 0);
    engine_.reset();
    workers_.clear();
  }
}

TEST_F(RemoteRolloutEngineTest, ARequestThatReadyWorkersRefuseForTheBudgetFails) {
  clock_ = &manual_clock_;
  const auto refuses = [&](const auto&) {
    manual_clock_.Advance(absl::Minutes(2));
    return true;
  };
  for (const char* address : {"a", "b", "c"}) FailIf(Add(address), refuses, Unavailable("busy"));
  Batch batch(StartWith(0), 1, 0);
  EXPECT_TRUE(PollUntil(absl::Seconds(60), [&] {
    manual_clock_.Advance(absl::Milliseconds(2));  // longer than the pause of a lost worker
    return engine_->stats().num_unfinished == 0;
  }));
  EXPECT_ERROR(batch.Wait()[0], kUnavailable, "refused 20 times in more than 30m: busy");
}

TEST_F(RemoteRolloutEngineTest, CancelAllEndsWhatRunsAndWhatWaits) {
  ScriptedWorker* const a = Add("a");
  a->on_generate = [](const auto&, const auto&, const std::stop_token& stop) {
    absl::Notification stopped;
    const std::stop_callback notify(stop, [&] { stopped.Notify(); });
    stopped.WaitForNotificationWithTimeout(absl::Seconds(60));
    return absl::StatusOr<WorkerRollout>(absl::CancelledError("cancelled"));
  };
  RemoteRolloutEngine* const engine = StartWith(0);
  Batch batch(engine, 10, 0);
  engine->CancelAll();
  for (const auto& answer : batch.Wait())
    EXPECT_EQ(answer.status().code(), kCancelled) << answer.status();
  a->on_generate = nullptr;
  engine->SetWeights(Weights(0, "-again"));  // another roll-out of the same step
  Batch(engine, 10, 0).ExpectWhole(0);
}

TEST_F(RemoteRolloutEngineTest, RequestsForOtherWeightsThanTheWorkersHaveAreRefused) {
  Add("a");
  RemoteRolloutEngine* const engine = StartWith(0);
  EXPECT_ERROR(Batch(engine, 1, 1).Wait()[0], kFailedPrecondition, "step 1");
  engine->SetWeights(ResourceExhausted("the disk is full"));
  EXPECT_ERROR(Batch(engine, 1, 0).Wait()[0], kResourceExhausted, "disk");
}

}  // namespace
}  // namespace taopd::testing
