#include "trainer/dist/shares.h"

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

TEST(SharesTest, EverySequenceHasOneRank) {
  for (const int64_t world : {1, 2, 3, 4}) {
    for (const int64_t size : {4, 7, 9, 100}) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < world; ++rank) {
        ASSERT_OK_AND_ASSIGN(const Shares shares, Shares::Make(0, rank, world));
        EXPECT_EQ(shares.OwnRange(size).begin, next);
        EXPECT_EQ(shares.num_per_rank(), 1);
        next = shares.OwnRange(size).end;
        // The ranks' numbers of sequences differ by at most one.
        EXPECT_LE(shares.OwnRange(size).size(), (size + world - 1) / world);
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(SharesTest, FixedSharesDoNotDependOnTheRanks) {
  ASSERT_OK_AND_ASSIGN(const Shares alone, Shares::Make(4, 0, 1));
  const std::vector<SequenceRange> expected = alone.All(9);
  ASSERT_EQ(expected.size(), 4U);
  for (const int64_t world : {1, 2, 4}) {
    for (int64_t rank = 0; rank < world; ++rank) {
      ASSERT_OK_AND_ASSIGN(const Shares shares, Shares::Make(4, rank, world));
      EXPECT_EQ(shares.All(9), expected) << world;
      const int64_t num = shares.num_per_rank(), first = rank * num;
      EXPECT_EQ(num, 4 / world);
      EXPECT_EQ(shares.OwnRange(9),
                (SequenceRange{expected[first].begin, expected[first + num - 1].end}));
      for (int64_t i = first; i < first + num; ++i) EXPECT_EQ(shares.RankOf(i), rank);
    }
  }
}

TEST(SharesTest, RanksThatCannotDivideTheSharesAreRefused) {
  EXPECT_OK(Shares::Make(12, 0, 3));
  EXPECT_ERROR(Shares::Make(4, 0, 3), kInvalidArgument, "3 ranks cannot divide dist.shares = 4");
  EXPECT_ERROR(Shares::Make(4, 0, 8), kInvalidArgument, "8 ranks");
  EXPECT_ERROR(Shares::Make(12, 0, 2), kInvalidArgument, "2 ranks");
}

}  // namespace
}  // namespace taopd::testing
