#include "trainer/teacher/endpoint_pool.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();
constexpr absl::Duration kMaxPause = absl::Seconds(8);

class EndpointPoolTest : public ::testing::Test {
 protected:
  static RetryOptions Options() {
    return {.endpoints = {"a", "b"},
            .max_in_flight_per_endpoint = 2,
            .initial_backoff = absl::Seconds(1),
            .max_backoff = kMaxPause};
  }
  void Fail(size_t index, absl::Time now) {
    pool_.SetFailing(index, absl::UnavailableError("as told"), now);
  }

  Backoff backoff_{Options()};
  EndpointPool pool_{Options(), &backoff_};
};

TEST_F(EndpointPoolTest, FewestInFlightIsChosenAndTheLastThatFailedComesLast) {
  EXPECT_EQ(pool_.Choose(std::nullopt, kNow), 0u);
  EXPECT_EQ(pool_.Choose(0, kNow), 1u);
  EXPECT_FALSE(pool_.BeginAttempt(0));
  EXPECT_EQ(pool_.Choose(std::nullopt, kNow), 1u);
  pool_.BeginAttempt(1);
  pool_.BeginAttempt(1);
  EXPECT_EQ(pool_.Choose(0, kNow), 0u);  // the other is full
  EXPECT_EQ(pool_.num_in_flight(), 3);
  pool_.BeginAttempt(0);
  EXPECT_FALSE(pool_.AnyOpen(kNow));
  EXPECT_FALSE(pool_.AnyClosed(kNow));
  pool_.EndAttempt(1, /*is_probe=*/false);
  EXPECT_EQ(pool_.Choose(std::nullopt, kNow), 1u);
}

TEST_F(EndpointPoolTest, FailingEndpointGetsOneProbeAfterItsPause) {
  pool_.PauseUntil(1, absl::InfiniteFuture());  // out of the way
  Fail(0, kNow);
  const absl::Time probe_at = pool_.NextOpening(kNow);
  EXPECT_LE(probe_at, kNow + absl::Seconds(1));
  EXPECT_FALSE(pool_.AnyOpen(probe_at - absl::Nanoseconds(1)));
  ASSERT_TRUE(pool_.AnyOpen(probe_at));
  EXPECT_TRUE(pool_.BeginAttempt(0));
  EXPECT_FALSE(pool_.AnyOpen(probe_at));  // one probe at a time
  pool_.EndAttempt(0, /*is_probe=*/true);
  pool_.SetWorking(0, kNow);
  EXPECT_FALSE(pool_.BeginAttempt(0));
  EXPECT_TRUE(pool_.AnyOpen(probe_at));
}

TEST_F(EndpointPoolTest, AttemptsFromBeforeTheFailureDoNotProlongThePause) {
  Fail(0, kNow);
  const absl::Time probe_at = pool_.NextOpening(kNow);
  for (int i = 0; i < 100; ++i) Fail(0, kNow);
  EXPECT_EQ(pool_.NextOpening(kNow), probe_at);
}

TEST_F(EndpointPoolTest, OutageLastsWhileEveryEndpointFails) {
  Fail(0, kNow);
  EXPECT_EQ(pool_.outage_since(), absl::InfiniteFuture());
  EXPECT_TRUE(pool_.AnotherIsOpen(0, kNow));
  EXPECT_FALSE(pool_.AnotherIsOpen(1, kNow));
  Fail(1, kNow + absl::Seconds(5));
  Fail(1, kNow + absl::Minutes(1));
  EXPECT_EQ(pool_.outage_since(), kNow + absl::Seconds(5));
  pool_.SetWorking(0, kNow);
  EXPECT_EQ(pool_.outage_since(), absl::InfiniteFuture());
}

TEST_F(EndpointPoolTest, EndpointThatAsksForItIsLeftAloneButDoesNotFail) {
  pool_.PauseUntil(0, kNow + absl::Seconds(3));
  pool_.PauseUntil(0, kNow + absl::Seconds(1));  // does not shorten it
  EXPECT_TRUE(pool_.AnyClosed(kNow));
  EXPECT_EQ(pool_.NextOpening(kNow), kNow + absl::Seconds(3));
  EXPECT_EQ(pool_.Choose(1, kNow), 1u);
  EXPECT_EQ(pool_.Choose(1, kNow + absl::Seconds(3)), 0u);
  EXPECT_FALSE(pool_.BeginAttempt(0));  // no probe
}

TEST_F(EndpointPoolTest, AnotherRevisionIsWhatTheLastFailureSaid) {
  const absl::Status other = absl::FailedPreconditionError("another revision");
  const auto serves_another = [this](size_t index) {
    return pool_.stats(kNow)[index].serves_another_revision;
  };
  pool_.SetFailing(0, other, kNow);
  EXPECT_TRUE(serves_another(0));
  EXPECT_FALSE(pool_.AllRefuse());
  Fail(1, kNow);
  EXPECT_FALSE(pool_.AllRefuse());  // the second is merely down
  pool_.SetFailing(1, other, kNow);
  EXPECT_TRUE(pool_.AllRefuse());
  Fail(0, kNow);  // it has ended: what comes next may be right
  EXPECT_FALSE(serves_another(0));
  EXPECT_FALSE(pool_.AllRefuse());
  pool_.SetFailing(0, other, kNow);
  pool_.SetWorking(0, kNow);
  EXPECT_FALSE(serves_another(0));
  EXPECT_FALSE(pool_.AllRefuse());
}

TEST_F(EndpointPoolTest, ARefusedKeyIsNamedAndIsNoOtherRevision) {
  pool_.SetFailing(0, absl::FailedPreconditionError("another revision"), kNow);
  for (const absl::Status& refused :
       {absl::UnauthenticatedError("an old key"), absl::PermissionDeniedError("an old key")}) {
    pool_.SetWorking(1, kNow);
    ::testing::internal::CaptureStderr();
    pool_.SetFailing(1, refused, kNow);
    pool_.SetFailing(1, refused, kNow);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("refuses the API key and is left out"));
    EXPECT_EQ(log.find("left out"), log.rfind("left out")) << log;
    EXPECT_FALSE(pool_.stats(kNow)[1].serves_another_revision);
    EXPECT_TRUE(pool_.stats(kNow)[1].is_failing);
    EXPECT_TRUE(pool_.AllRefuse());
  }
}

TEST_F(EndpointPoolTest, NeitherAFailingEndpointNorOneThatIsLeftAloneHelpsOut) {
  pool_.PauseUntil(1, kNow + absl::Seconds(3));
  EXPECT_FALSE(pool_.AnotherIsOpen(0, kNow));
  EXPECT_EQ(pool_.ChooseForHedge(0, kNow), std::nullopt);
  const absl::Time later = kNow + absl::Seconds(3);
  EXPECT_TRUE(pool_.AnotherIsOpen(0, later));
  EXPECT_EQ(pool_.ChooseForHedge(0, later), 1u);
  Fail(1, later);
  const absl::Time probe_at = pool_.NextOpening(later);
  EXPECT_TRUE(pool_.AnyOpen(probe_at));
  EXPECT_EQ(pool_.ChooseForHedge(0, probe_at), std::nullopt);  // a probe is no help
}

TEST_F(EndpointPoolTest, TheTimeInWhichItWasLeftOutAddsUp) {
  Fail(0, kNow);
  pool_.SetWorking(0, kNow + absl::Seconds(5));
  EXPECT_EQ(pool_.stats(kNow + absl::Minutes(1))[0].left_out, absl::Seconds(5));
  Fail(0, kNow + absl::Minutes(1));
  EXPECT_EQ(pool_.stats(kNow + absl::Seconds(62))[0].left_out, absl::Seconds(7));
}

TEST_F(EndpointPoolTest, ALaterFailureBeginsWithAShortPauseAgain) {
  pool_.PauseUntil(1, kNow + absl::Hours(10));  // out of the way
  absl::Time now = kNow;
  for (int i = 0; i < 20; ++i) {
    Fail(0, now);
    now = pool_.NextOpening(now);
  }
  pool_.SetWorking(0, now);
  Fail(0, now);
  EXPECT_LE(pool_.NextOpening(now), now + absl::Seconds(1));
}

TEST(BackoffTest, PausesDoubleUpToTheLimit) {
  const RetryOptions options = {.initial_backoff = absl::Seconds(1), .max_backoff = kMaxPause};
  Backoff backoff(options);
  for (const auto& [num_failures, limit] :
       {std::pair(1, absl::Seconds(1)), std::pair(3, absl::Seconds(4)), std::pair(4, kMaxPause),
        std::pair(1000, kMaxPause)}) {
    absl::Duration longest;
    for (int i = 0; i < 1000; ++i) longest = std::max(longest, backoff.PauseAfter(num_failures));
    EXPECT_LE(longest, limit) << num_failures;
    EXPECT_GE(longest, limit * 0.9) << num_failures;
  }
}

}  // namespace
}  // namespace taopd::testing
