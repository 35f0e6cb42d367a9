#include "server/serving/heap_trim.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;

class HeapTrimTest : public ::testing::Test {
 protected:
  // Returns how often heaps were trimmed after a tick at `seconds` with that much memory.
  int TickAt(int seconds, int64_t held_mib) {
    held_bytes_ = held_mib * kMib;
    heap_.Tick(absl::UnixEpoch() + absl::Seconds(seconds));
    return num_trims_;
  }

  int64_t held_bytes_ = 100 * kMib, kept_bytes_ = 100 * kMib;
  int num_trims_ = 0;
  HeapTrim heap_{[this] { return held_bytes_; },
                 [this] {
                   ++num_trims_;
                   held_bytes_ = kept_bytes_;
                 }};
};

TEST_F(HeapTrimTest, GrowthIsReturnedAndSmallChangesAreLeft) {
  EXPECT_EQ(TickAt(0, 100), 1);  // what loading has left
  EXPECT_EQ(TickAt(5, 131), 1);
  EXPECT_EQ(TickAt(6, 132), 2);
  EXPECT_EQ(held_bytes_, 100 * kMib);
  EXPECT_EQ(TickAt(15, 120), 2);
}

TEST_F(HeapTrimTest, GrowthIsReturnedNotTooOften) {
  EXPECT_EQ(TickAt(0, 500), 1);
  EXPECT_EQ(TickAt(4, 500), 1);
  EXPECT_EQ(TickAt(5, 500), 2);
}

TEST_F(HeapTrimTest, GrowthCountsFromTheSmallestSize) {
  kept_bytes_ = 500 * kMib;
  EXPECT_EQ(TickAt(0, 510), 1);
  EXPECT_EQ(TickAt(6, 531), 1);
  EXPECT_EQ(TickAt(7, 200), 1);
  EXPECT_EQ(TickAt(8, 232), 2);
}

// Memory that was in use when heaps were trimmed is free now.
TEST_F(HeapTrimTest, WithoutGrowthHeapsAreTrimmedNowAndThen) {
  EXPECT_EQ(TickAt(0, 100), 1);
  EXPECT_EQ(TickAt(9, 100), 1);
  EXPECT_EQ(TickAt(10, 100), 2);
  EXPECT_EQ(TickAt(11, 100), 2);
}

TEST_F(HeapTrimTest, GrowthCanBeReturnedAtOnce) {
  EXPECT_EQ(TickAt(0, 100), 1);
  held_bytes_ = 131 * kMib;
  heap_.TrimGrowth(absl::UnixEpoch());
  EXPECT_EQ(num_trims_, 1);
  held_bytes_ = 132 * kMib;
  heap_.TrimGrowth(absl::UnixEpoch());
  EXPECT_EQ(num_trims_, 2);
}

}  // namespace
}  // namespace taopd::testing
