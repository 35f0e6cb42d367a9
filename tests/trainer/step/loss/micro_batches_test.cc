#include "trainer/step/loss/micro_batches.h"

#include <gtest/gtest.h>

#include <numeric>

#include "common/base/random.h"

namespace taopd {
namespace {

TEST(MicroBatchEnds, FillsTheBudgetInOrder) {
  EXPECT_EQ(MicroBatchEnds({3, 3, 4, 1}, 7), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(MicroBatchEnds({10, 1, 10}, 7), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(MicroBatchEnds({1, 1, 1}, 100), (std::vector<int64_t>{3}));
  EXPECT_TRUE(MicroBatchEnds({}, 7).empty());
}

TEST(MicroBatchEnds, EveryItemOnceWithinTheBudget) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed);
    std::vector<int64_t> tokens(random.NextBelow(20));
    for (int64_t& t : tokens) t = 1 + static_cast<int64_t>(random.NextBelow(12));
    const int64_t budget = 1 + static_cast<int64_t>(random.NextBelow(20));
    int64_t begin = 0;
    for (int64_t end : MicroBatchEnds(tokens, budget)) {
      ASSERT_GT(end, begin);
      const int64_t sum = std::accumulate(tokens.begin() + begin, tokens.begin() + end, int64_t{0});
      EXPECT_TRUE(sum <= budget || end == begin + 1);
      begin = end;
    }
    EXPECT_EQ(begin, static_cast<int64_t>(tokens.size()));
  }
}

}  // namespace
}  // namespace taopd
