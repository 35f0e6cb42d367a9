#include "server/serving/serving_state.h"

#include "tests/server/fake_engine.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(ServingStateTest, AdmitsOnlyWhenReady) {
  ServingState state(Clock::Real(), absl::Seconds(1));
  EXPECT_ERROR(state.Admit(), kUnavailable, "loading");
  EXPECT_ERROR(state.Health(), kUnavailable, "loading");
  state.SetReady(MakeFakeModel().model);
  EXPECT_OK(state.Admit());
  EXPECT_OK(state.Health());
  state.SetDraining();
  EXPECT_ERROR(state.Admit(), kUnavailable, "draining");
  EXPECT_ERROR(state.Health(), kUnavailable, "draining");
  EXPECT_NE(state.model(), nullptr);
}

TEST(ServingStateTest, FailedLoadIsNotReadyAndHidesTheReason) {
  ServingState state(Clock::Real(), absl::Seconds(1));
  state.SetFailed(NotFound("/secret/path"));
  EXPECT_ERROR(state.Admit(), kUnavailable, "could not be loaded");
  EXPECT_THAT(std::string(state.Admit().status().message()), Not(HasSubstr("secret")));
}

TEST(ServingStateTest, StallCountsFromTheFirstLookAtWaitingWork) {
  ManualClock clock;
  ServingState state(&clock, absl::Seconds(10));
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  clock.Advance(absl::Hours(1));
  EXPECT_OK(state.Health());  // idle for an hour

  fake.engine->Hold(true);
  const InferenceRequest request = {.token_ids = {1, 2}, .score = ScoreParams()};
  const RequestHandle handle = fake.engine->Submit(request, [](absl::StatusOr<InferenceResult>) {});
  EXPECT_OK(state.Health());
  clock.Advance(absl::Seconds(10));
  EXPECT_OK(state.Health());
  EXPECT_EQ(state.HeartbeatAgeSeconds(), 10.0);
  clock.Advance(absl::Seconds(1));
  EXPECT_ERROR(state.Health(), kUnavailable, "no step for 11 s");

  fake.engine->Cancel(handle);
  fake.engine->Drain(absl::InfiniteFuture());
  EXPECT_OK(state.Health());  // work is gone
}

TEST(ServingStateTest, FailedDeviceIsNotHealthy) {
  ServingState state(Clock::Real(), absl::Seconds(10));
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  EXPECT_OK(state.Health());
  const EngineStats stats = {.device_failed = true};
  fake.engine->SetStats(stats);
  EXPECT_ERROR(state.Health(), kUnavailable, "the device no longer computes");
}

// A process that loads or drains is not to be started again.
TEST(ServingStateTest, OnlyFailuresCallForAnotherProcess) {
  ManualClock clock;
  ServingState state(&clock, absl::Seconds(10));
  EXPECT_ERROR(state.Health(), kUnavailable, "loading");
  EXPECT_OK(state.Alive());
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  const EngineStats stats = {.num_running = 1};
  fake.engine->SetStats(stats);
  state.SetDraining();
  EXPECT_OK(state.Alive());
  clock.Advance(absl::Seconds(11));
  EXPECT_ERROR(state.Alive(), kUnavailable, "no step for 11 s");
  fake.engine->SetStats(EngineStats());
  EXPECT_OK(state.Alive());
  state.SetListeners(absl::InternalError("HTTP does not answer"));
  EXPECT_ERROR(state.Alive(), kUnavailable, "HTTP does not answer");
}

// A long step beats after each layer.
TEST(ServingStateTest, BeatsDuringAStepAreHealthy) {
  ManualClock clock;
  ServingState state(&clock, absl::Seconds(10));
  const FakeModel fake = MakeFakeModel();
  state.SetReady(fake.model);
  EngineStats stats = {.num_running = 1};
  for (int layer = 0; layer < 5; ++layer) {
    stats.last_step = clock.Now();
    fake.engine->SetStats(stats);
    EXPECT_OK(state.Health());
    clock.Advance(absl::Seconds(9));
    EXPECT_OK(state.Health());
  }
  clock.Advance(absl::Seconds(2));
  EXPECT_ERROR(state.Health(), kUnavailable, "no step for 11 s");
}

}  // namespace
}  // namespace taopd::testing
