#include "server/serving/byte_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace taopd::testing {
namespace {

TEST(ByteBudgetTest, RefusesAboveTheLimitAndReturnsBytes) {
  ByteBudget budget(100);
  {
    const ByteBudget::Reservation first = budget.TryReserve(60);
    EXPECT_TRUE(first);
    EXPECT_FALSE(budget.TryReserve(41));
    ByteBudget::Reservation second = budget.TryReserve(40);
    EXPECT_TRUE(second);
    EXPECT_EQ(budget.num_used(), 100);
    second = ByteBudget::Reservation();
    EXPECT_EQ(budget.num_used(), 60);
  }
  EXPECT_EQ(budget.num_used(), 0);
}

TEST(ByteBudgetTest, AClientOverItsShareIsRefusedWhereOthersAreNot) {
  ByteBudget budget(100, 0.5);
  {
    const ByteBudget::Reservation greedy = budget.TryReserve(50, "greedy");
    ASSERT_TRUE(greedy);
    EXPECT_FALSE(budget.TryReserve(1, "greedy"));
    EXPECT_EQ(budget.Check(1, "greedy"), ByteBudget::Refusal::kClientShare);
    EXPECT_EQ(budget.Check(51, "greedy"), ByteBudget::Refusal::kFull);
    ByteBudget::Reservation other = budget.TryReserve(25, "other");  // as much as is then left
    EXPECT_TRUE(other);
    EXPECT_FALSE(budget.TryReserve(1, "other"));
    EXPECT_FALSE(budget.TryReserve(26));
    EXPECT_TRUE(budget.TryReserve(25));  // nobody's share
    EXPECT_EQ(budget.num_refused(ByteBudget::Refusal::kClientShare), 2u);
    EXPECT_EQ(budget.num_refused(ByteBudget::Refusal::kFull), 1u);
    other = ByteBudget::Reservation();
    EXPECT_FALSE(budget.TryReserve(1, "greedy"));  // it holds as much as before
    EXPECT_TRUE(budget.TryReserve(25, "other"));
  }
  EXPECT_TRUE(budget.TryReserve(50, "greedy"));
  EXPECT_EQ(budget.num_used(), 0);
}

TEST(ByteBudgetTest, AClientHoldsTheSumOfItsReservations) {
  ByteBudget budget(100, 0.5);
  ByteBudget::Reservation first = budget.TryReserve(20, "a");
  ByteBudget::Reservation second = budget.TryReserve(20, "a");
  first = ByteBudget::Reservation();
  EXPECT_EQ(budget.num_used(), 20);
  // 3 bytes stay free for smaller requests.
  EXPECT_EQ(budget.Check(28, "a"), ByteBudget::Refusal::kClientShare);
  EXPECT_EQ(budget.Check(27, "a"), ByteBudget::Refusal::kNone);
  ByteBudget::Reservation moved = std::move(second);
  EXPECT_FALSE(second);
  EXPECT_EQ(budget.num_used(), 20);
  first = std::move(moved);
  first = ByteBudget::Reservation();
  EXPECT_EQ(budget.num_used(), 0);
  EXPECT_EQ(budget.Check(50, "a"), ByteBudget::Refusal::kNone);
  EXPECT_EQ(budget.num_clients(), 0u);  // clients come and go
}

TEST(ByteBudgetTest, AClientsLongRequestsLeaveRoomForItsShortOnes) {
  for (int64_t length : {8, 25, 50, 100, 400}) {  // each could fill the share without a rest
    ByteBudget budget(1600, 0.5);
    std::vector<ByteBudget::Reservation> flood;
    while (ByteBudget::Reservation next = budget.TryReserve(length, "a"))
      flood.push_back(std::move(next));
    EXPECT_GE(budget.num_used(), 800 - 2 * length);
    EXPECT_EQ(budget.Check(std::min<int64_t>(length / 2, 25), "a"), ByteBudget::Refusal::kNone)
        << length;
  }
}

// An empty text has no tokens and reserves no bytes.
TEST(ByteBudgetTest, NothingMayBeReservedAndReturnedInAnyOrder) {
  ByteBudget budget(100, 0.5);
  for (const bool nothing_first : {false, true}) {
    ByteBudget::Reservation nothing = budget.TryReserve(0, "a");
    ByteBudget::Reservation some = budget.TryReserve(10, "a");
    EXPECT_TRUE(nothing);
    (nothing_first ? nothing : some) = ByteBudget::Reservation();
    (nothing_first ? some : nothing) = ByteBudget::Reservation();
    EXPECT_EQ(budget.num_used(), 0);
    EXPECT_EQ(budget.num_clients(), 0u);
  }
}

}  // namespace
}  // namespace taopd::testing
