#include "common/text/bpe/merge_table.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "common/base/random.h"

namespace taopd::testing {
namespace {

TEST(MergeTable, AgreesWithAMap) {
  constexpr int32_t kMaxId = (int32_t{1} << MergeTable::kIdBits) - 1;
  RandomStream random(5);
  for (const int num_merges : {0, 1, 2, 3, 1000, 30'000}) {
    std::vector<BpeMerge> merges;
    std::map<std::pair<int32_t, int32_t>, uint32_t> ranks;
    // A few ids repeat in pairs; the largest id is among them.
    const uint64_t num_ids = 1 + random.NextBelow(200);
    for (int m = 0; m < num_merges; ++m) {
      const auto left = kMaxId - static_cast<int32_t>(random.NextBelow(num_ids));
      const auto right = kMaxId - static_cast<int32_t>(random.NextBelow(num_ids));
      ranks[{left, right}] = static_cast<uint32_t>(m);
      merges.push_back({left, right, 7 * m});
    }
    const MergeTable table(merges);
    for (int32_t left = kMaxId - 210; left <= kMaxId; ++left) {
      for (int32_t right = kMaxId - 210; right <= kMaxId; ++right) {
        const auto found = ranks.find({left, right});
        const uint32_t rank = table.RankOf(left, right);
        ASSERT_EQ(rank, found == ranks.end() ? MergeTable::kNoRank : found->second);
        if (found == ranks.end()) continue;
        ASSERT_EQ(table.MergedId(rank), 7 * static_cast<int32_t>(rank));
      }
    }
    EXPECT_EQ(table.RankOf(0, 0), MergeTable::kNoRank);
  }
}

}  // namespace
}  // namespace taopd::testing
