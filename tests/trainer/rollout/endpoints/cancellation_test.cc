#include "trainer/rollout/endpoints/cancellation.h"

#include <gtest/gtest.h>

namespace taopd {
namespace {

TEST(Cancellation, RunsEachHookOnce) {
  Cancellation cancellation;
  int before = 0, after = 0, gone = 0;
  {
    const Cancellation::Hook hook(&cancellation, [&] { ++gone; });
  }
  const Cancellation::Hook first(&cancellation, [&] { ++before; });
  EXPECT_FALSE(cancellation.is_cancelled());
  cancellation.Cancel();
  cancellation.Cancel();
  const Cancellation::Hook second(&cancellation, [&] { ++after; });
  EXPECT_TRUE(cancellation.is_cancelled());
  EXPECT_TRUE(cancellation.WaitFor(absl::InfiniteDuration()));
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 1);
  EXPECT_EQ(gone, 0);
}

}  // namespace
}  // namespace taopd
