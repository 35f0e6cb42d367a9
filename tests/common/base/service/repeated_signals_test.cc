#include "common/base/service/repeated_signals.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

using std::chrono::milliseconds;

TEST(RepeatedSignals, APairIsOneWish) {
  RepeatedSignals signals;
  const RepeatedSignals::Time start(std::chrono::hours(3));
  EXPECT_EQ(signals.Observe(start), SignalAction::kStop);
  EXPECT_EQ(signals.Observe(start), SignalAction::kSameRequest);
  EXPECT_EQ(signals.Observe(start + milliseconds(1)), SignalAction::kSameRequest);
  EXPECT_EQ(signals.Observe(start + milliseconds(4999)), SignalAction::kSameRequest);
  EXPECT_EQ(signals.Observe(start + milliseconds(5000)), SignalAction::kEndImmediately);
}

// The five seconds count from the first signal: somebody who sends one each second does not wait.
TEST(RepeatedSignals, RepetitionsDoNotProlongTheWish) {
  RepeatedSignals signals;
  const RepeatedSignals::Time start;
  for (int second = 0; second <= 6; ++second) {
    const SignalAction expected = second == 0  ? SignalAction::kStop
                                  : second < 5 ? SignalAction::kSameRequest
                                               : SignalAction::kEndImmediately;
    EXPECT_EQ(signals.Observe(start + std::chrono::seconds(second)), expected) << second;
  }
}

TEST(RepeatedSignals, ALaterSignalAloneEndsAtOnce) {
  RepeatedSignals signals;
  EXPECT_EQ(signals.Observe(RepeatedSignals::Time()), SignalAction::kStop);
  EXPECT_EQ(signals.Observe(RepeatedSignals::Time(std::chrono::hours(1))),
            SignalAction::kEndImmediately);
}

}  // namespace
}  // namespace taopd::testing
