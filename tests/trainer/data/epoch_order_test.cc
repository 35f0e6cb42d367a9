#include "trainer/data/epoch_order.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(EpochOrder, EachRecordOnceAnEpochInANewOrder) {
  EpochOrder order(10, 3, true);
  std::vector<int64_t> first = order.Next(10), second = order.Next(10);
  EXPECT_NE(first, second);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 10u);
  EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), 10u);
}

TEST(EpochOrder, BatchesSpanEpochsAndResumeAnywhere) {
  for (const EpochOrder& start :
       {EpochOrder(7, 5, true), EpochOrder({{3, 1.4}, {5, 0.4}}, 5, true)}) {
    EpochOrder whole = start;
    const std::vector<int64_t> expected = whole.Next(40);
    for (int64_t cut = 0; cut < 40; ++cut) {
      EpochOrder before = start, after = start;
      std::vector<int64_t> got = before.Next(cut);
      ASSERT_OK(after.Restore(before.epoch(), before.index()));
      for (int64_t id : after.Next(40 - cut)) got.push_back(id);
      EXPECT_EQ(got, expected) << start.epoch_size() << " records, " << cut;
    }
  }
}

TEST(EpochOrder, UnshuffledIsTheFilesOrderAndBadPositionsAreRefused) {
  EpochOrder order(3, 5, false);
  EXPECT_EQ(order.Next(5), (std::vector<int64_t>{0, 1, 2, 0, 1}));
  EXPECT_ERROR(order.Restore(0, 4), kInvalidArgument, "index 4");
}

// Each record is used as often as its weight says over many epochs, and an epoch has the right
// size.
TEST(EpochOrder, WeightsSayHowOftenARecordIsUsed) {
  for (bool shuffle : {false, true}) {
    EpochOrder order({{4, 2.0}, {10, 0.3}, {0, 1.0}, {3, 1.5}}, 9, shuffle);
    EXPECT_EQ(order.epoch_size(), 8 + 3 + 0 + 5);  // 1.5 of 3: 3 + round(1.5)
    std::map<int64_t, int64_t> uses;
    for (int epoch = 0; epoch < 30; ++epoch) {
      std::map<int64_t, int64_t> now;
      for (int64_t record : order.Next(order.epoch_size())) {
        ++uses[record];
        ++now[record];
      }
      for (int64_t record = 0; record < 4; ++record) EXPECT_EQ(now[record], 2);
      for (int64_t record = 4; record < 14; ++record) EXPECT_LE(now[record], 1);
      for (int64_t record = 14; record < 17; ++record)
        EXPECT_TRUE(now[record] == 1 || now[record] == 2);
    }
    for (int64_t record = 4; record < 14; ++record) EXPECT_EQ(uses[record], 9);    // 30 * 3 / 10
    for (int64_t record = 14; record < 17; ++record) EXPECT_EQ(uses[record], 50);  // 30 * 5 / 3
    EXPECT_EQ(uses.size(), 17u);
  }
}

TEST(EpochOrder, WeightOneIsTheOrderWithoutWeights) {
  EXPECT_EQ(EpochOrder({{3, 1.0}, {4, 1.0}}, 7, true).Next(21), EpochOrder(7, 7, true).Next(21));
}

}  // namespace
}  // namespace taopd::testing
