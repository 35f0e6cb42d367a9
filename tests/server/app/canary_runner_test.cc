// When the canary is scored, with an engine and a clock that are stepped by hand.
#include "server/app/canary_runner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>
#include <utility>

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/stub_engine.h"

namespace taopd::testing {
namespace {

// Answers the first requests at once, each with a number moved by so much, and keeps the others.
class ProbedEngine final : public StubEngine {
 public:
  RequestHandle SubmitOne(InferenceRequest request, InferenceDone done) override {
    waiting_.emplace_back(std::move(request), std::move(done));
    ++num_asked_;
    if (!at_once_.empty()) {
      const float change = at_once_.front();
      at_once_.pop_front();
      Answer(change);
    }
    return num_asked_;
  }
  EngineLimits limits() const override { return kFakeLimits; }
  // Has a heartbeat before each of the first calls.
  EngineStats stats() const override {
    if (beats_left_ > 0) --beats_left_;
    EngineStats stats;
    stats.last_step = absl::UnixEpoch() - absl::Seconds(beats_left_);
    return stats;
  }

  void AnswerAtOnce(std::deque<float> changes) { at_once_ = std::move(changes); }
  // REQUIRES: a request waits. It fails if `change` is not a number.
  void Answer(float change) {
    auto [request, done] = std::move(waiting_.front());
    waiting_.pop_front();
    if (std::isnan(change)) return done(ResourceExhausted("no memory"));
    InferenceResult result = {.score = FakeScore(request.token_ids, *request.score)};
    result.score->sampled_log_probs[0] -= change;
    done(std::move(result));
  }
  int beats_left() const { return beats_left_; }
  int num_asked() const { return static_cast<int>(num_asked_); }

 private:
  std::deque<std::pair<InferenceRequest, InferenceDone>> waiting_;
  std::deque<float> at_once_;
  RequestHandle num_asked_ = 0;
  mutable int beats_left_ = 5;
};

class CanaryRunnerTest : public ::testing::Test {
 protected:
  absl::Status TryStartWith(std::deque<float> changes, absl::Duration stall_timeout) {
    auto model = std::make_shared<ServedModel>();
    auto engine = std::make_unique<ProbedEngine>();
    engine_ = engine.get();
    engine_->AnswerAtOnce(std::move(changes));
    model->limits = engine->limits();
    model->engine = std::move(engine);
    TAOPD_RETURN_IF_ERROR(runner_.RunAtStart(model, stall_timeout));
    state_.SetReady(model);
    return absl::OkStatus();
  }
  void StartWith(std::deque<float> changes) {
    EXPECT_OK(TryStartWith(std::move(changes), absl::InfiniteDuration()));
  }

  ManualClock clock_;
  ServingState state_{&clock_, absl::Seconds(60)};
  ProbedEngine* engine_ = nullptr;
  CanaryRunner runner_{&state_, absl::Seconds(10)};
};

TEST_F(CanaryRunnerTest, AnEngineThatAnswersTwiceDifferentlyIsNotServed) {
  StartWith({0.0f, 0.5f, 0.5f});
  EXPECT_EQ(engine_->num_asked(), 3);
  EXPECT_ERROR(state_.canary(), kInternal, "at position 1 was");
}

TEST_F(CanaryRunnerTest, AnEngineThatCannotComputeIsNotServed) {
  EXPECT_ERROR(TryStartWith({0.0f, NAN}, absl::InfiniteDuration()), kResourceExhausted,
               "no memory");
}

TEST_F(CanaryRunnerTest, AnEngineThatDoesNotAnswerIsAwaitedWhileItsHeartBeats) {
  EXPECT_ERROR(TryStartWith({0.0f}, absl::Milliseconds(1)), kInternal, "stall_timeout of 0.001 s");
  EXPECT_EQ(engine_->num_asked(), 2);
  EXPECT_EQ(engine_->beats_left(), 0);
}

TEST_F(CanaryRunnerTest, ProbesAreAnIntervalApartAndOneAtATime) {
  StartWith({0.0f, 0.0f});
  EXPECT_OK(state_.canary());
  const auto tick = [this](int seconds) {
    clock_.Advance(absl::Seconds(seconds));
    runner_.Tick();
    return engine_->num_asked();
  };
  EXPECT_EQ(tick(9), 2);
  EXPECT_EQ(tick(1), 3);
  EXPECT_EQ(tick(20), 3);  // the answer has not come
  engine_->Answer(0.0f);
  EXPECT_EQ(tick(0), 3);  // takes it
  EXPECT_OK(state_.canary());
  EXPECT_EQ(tick(0), 4);  // it has been time since
  engine_->Answer(0.5f);
  EXPECT_EQ(tick(0), 5);  // asked again at once
  EXPECT_OK(state_.canary());
  engine_->Answer(0.5f);
  EXPECT_EQ(tick(0), 5);
  EXPECT_ERROR(state_.canary(), kInternal, "at position 1 was");
  EXPECT_EQ(tick(9), 5);
  EXPECT_EQ(tick(1), 6);
  engine_->Answer(0.0f);
  EXPECT_EQ(tick(0), 6);
  EXPECT_OK(state_.canary());
  EXPECT_EQ(state_.num_canary_recovered(), 0u);
}

TEST_F(CanaryRunnerTest, AWrongAnswerThatIsNotConfirmedIsCountedAndRefusesNothing) {
  StartWith({0.0f, 0.5f, 0.0f});
  EXPECT_OK(state_.canary());
  EXPECT_EQ(state_.num_canary_recovered(), 1u);
  clock_.Advance(absl::Seconds(10));
  runner_.Tick();
  engine_->Answer(0.5f);
  runner_.Tick();
  EXPECT_OK(state_.canary());
  engine_->Answer(0.0f);
  runner_.Tick();
  EXPECT_OK(state_.canary());
  EXPECT_EQ(state_.num_canary_recovered(), 2u);
  EXPECT_EQ(engine_->num_asked(), 5);
}

}  // namespace
}  // namespace taopd::testing
