#include "server/serving/serving_state.h"

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class ServingStateTest : public ::testing::Test {
 protected:
  ManualClock clock_;
  ServingState state_{&clock_, absl::Seconds(10)};
  const FakeModel fake_ = MakeFakeModel();
};

// A process that loads or drains is not to be started again.
TEST_F(ServingStateTest, AdmitsOnlyWhenReady) {
  EXPECT_ERROR(state_.Admit(), kUnavailable, "loading");
  EXPECT_ERROR(state_.Health(), kUnavailable, "loading");
  EXPECT_OK(state_.Alive());
  state_.SetReady(fake_.model);
  EXPECT_OK(state_.Admit());
  EXPECT_OK(state_.Health());
  state_.SetDraining();
  EXPECT_ERROR(state_.Admit(), kUnavailable, "draining");
  EXPECT_ERROR(state_.Health(), kUnavailable, "draining");
  EXPECT_OK(state_.Alive());
  EXPECT_NE(state_.model(), nullptr);
}

TEST_F(ServingStateTest, FailedLoadIsNotReadyAndHidesTheReason) {
  state_.SetFailed(NotFound("/secret/path"));
  EXPECT_ERROR(state_.Admit(), kUnavailable, "could not be loaded");
  EXPECT_THAT(std::string(state_.Admit().status().message()), Not(HasSubstr("secret")));
}

TEST_F(ServingStateTest, StallCountsFromTheFirstLookAtWaitingWork) {
  state_.SetReady(fake_.model);
  clock_.Advance(absl::Hours(1));
  EXPECT_OK(state_.Health());  // idle for an hour

  fake_.engine->Hold(true);
  const InferenceRequest request = {.token_ids = {1, 2}, .score = ScoreParams()};
  const RequestHandle handle =
      fake_.engine->Submit(request, [](absl::StatusOr<InferenceResult>) {});
  EXPECT_OK(state_.Health());
  clock_.Advance(absl::Seconds(10));
  EXPECT_OK(state_.Health());
  EXPECT_EQ(state_.HeartbeatAgeSeconds(), 10.0);
  clock_.Advance(absl::Seconds(1));
  EXPECT_ERROR(state_.Health(), kUnavailable, "no step for 11 s");

  fake_.engine->Cancel(handle);
  fake_.engine->Drain(absl::InfiniteFuture());
  EXPECT_OK(state_.Health());  // work is gone
}

TEST_F(ServingStateTest, FailedDeviceIsNotHealthy) {
  state_.SetReady(fake_.model);
  EXPECT_OK(state_.Health());
  fake_.engine->SetStats({.device_failed = true});
  EXPECT_ERROR(state_.Health(), kUnavailable, "the device no longer computes");
}

TEST_F(ServingStateTest, OnlyFailuresCallForAnotherProcess) {
  state_.SetReady(fake_.model);
  fake_.engine->SetStats({.num_running = 1});
  state_.SetDraining();
  EXPECT_OK(state_.Alive());
  clock_.Advance(absl::Seconds(11));
  EXPECT_ERROR(state_.Alive(), kUnavailable, "no step for 11 s");
  fake_.engine->SetStats(EngineStats());
  EXPECT_OK(state_.Alive());
  state_.SetListeners(absl::InternalError("HTTP does not answer"));
  EXPECT_ERROR(state_.Alive(), kUnavailable, "HTTP does not answer");
}

// A long step beats after each layer.
TEST_F(ServingStateTest, BeatsDuringAStepAreHealthy) {
  state_.SetReady(fake_.model);
  for (int layer = 0; layer < 5; ++layer) {
    fake_.engine->SetStats({.num_running = 1, .last_step = clock_.Now()});
    EXPECT_OK(state_.Health());
    clock_.Advance(absl::Seconds(9));
    EXPECT_OK(state_.Health());
  }
  clock_.Advance(absl::Seconds(2));
  EXPECT_ERROR(state_.Health(), kUnavailable, "no step for 11 s");
}

}  // namespace
}  // namespace taopd::testing
