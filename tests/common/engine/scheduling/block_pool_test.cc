#include "common/engine/scheduling/block_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace taopd::testing {
namespace {

PrefixKey Key(uint64_t parent, int32_t first_token, uint64_t weight_version = 0,
              const std::string& salt = "") {
  PrefixKey key{parent, weight_version, salt, std::vector<int32_t>(4)};
  std::iota(key.token_ids.begin(), key.token_ids.end(), first_token);
  return key;
}

TEST(BlockPool, HandsOutTheLowestFreeBlock) {
  BlockPool pool(3, 4, true);
  EXPECT_EQ(pool.NumBlocksFor(0), 0);
  EXPECT_EQ(pool.NumBlocksFor(4), 1);
  EXPECT_EQ(pool.NumBlocksFor(5), 2);
  for (int32_t expected : {0, 1, 2}) EXPECT_EQ(pool.Allocate(), expected);
  EXPECT_EQ(pool.num_available(), 0);
  pool.Release(2);
  pool.Release(0);
  EXPECT_EQ(pool.num_in_use(), 1);
  EXPECT_EQ(pool.Allocate(), 0);
}

TEST(BlockPool, ABlockIsInUseUntilItsLastReferenceIsReleased) {
  BlockPool pool(1, 4, true);
  const int32_t block = pool.Allocate();
  pool.AddReference(block);
  pool.Release(block);
  EXPECT_EQ(pool.num_references(block), 1);
  EXPECT_EQ(pool.num_available(), 0);
  pool.Release(block);
  EXPECT_EQ(pool.num_available(), 1);
  EXPECT_DEATH(pool.Release(block), "num_references");
}

TEST(BlockPool, FindsAPublishedBlockByAllOfItsKey) {
  BlockPool pool(4, 4, true);
  const int32_t first = pool.Allocate();
  const uint64_t entry = pool.Publish(first, Key(0, 10, 7, "salt"));
  const int32_t second = pool.Allocate();
  const uint64_t next_entry = pool.Publish(second, Key(entry, 20));
  EXPECT_NE(entry, next_entry);
  ASSERT_TRUE(pool.Find(Key(0, 10, 7, "salt")));
  EXPECT_EQ(pool.Find(Key(0, 10, 7, "salt"))->block, first);
  EXPECT_EQ(pool.Find(Key(entry, 20))->entry, next_entry);
  EXPECT_FALSE(pool.Find(Key(0, 11, 7, "salt")));
  EXPECT_FALSE(pool.Find(Key(0, 10, 8, "salt")));
  EXPECT_FALSE(pool.Find(Key(0, 10, 7, "other")));
  EXPECT_FALSE(pool.Find(Key(next_entry, 20)));
}

TEST(BlockPool, TheFirstOfEqualBlocksStaysTheOneThatIsFound) {
  BlockPool pool(2, 4, true);
  const int32_t first = pool.Allocate();
  const int32_t second = pool.Allocate();
  const uint64_t entry = pool.Publish(first, Key(0, 1));
  EXPECT_EQ(pool.Publish(second, Key(0, 1)), entry);
  pool.Release(second);
  EXPECT_EQ(pool.num_cached(), 0);  // nobody can find it
  pool.Release(first);
  EXPECT_EQ(pool.num_cached(), 1);
}

TEST(BlockPool, EvictsTheLeastRecentlyUsedCachedBlockIfNoneIsFree) {
  BlockPool pool(4, 4, true);
  for (int32_t block : {0, 1, 2}) {
    ASSERT_EQ(pool.Allocate(), block);
    pool.Publish(block, Key(0, 100 * block));
  }
  for (int32_t block : {1, 0, 2}) pool.Release(block);
  EXPECT_EQ(pool.num_cached(), 3);
  EXPECT_EQ(pool.num_available(), 4);
  pool.AddReference(1);  // used again, so it is now the most recent one
  pool.Release(1);
  EXPECT_EQ(pool.Allocate(), 3);  // free
  EXPECT_EQ(pool.num_evictions(), 0u);
  for (int32_t expected : {0, 2, 1}) {
    EXPECT_TRUE(pool.Find(Key(0, 100 * expected)));
    EXPECT_EQ(pool.Allocate(), expected);
    EXPECT_FALSE(pool.Find(Key(0, 100 * expected)));
  }
  EXPECT_EQ(pool.num_evictions(), 3u);
}

TEST(BlockPool, ReleaseCacheForgetsAllAndFreesWhatNobodyUses) {
  BlockPool pool(2, 4, true);
  const int32_t used = pool.Allocate();
  const int32_t unused = pool.Allocate();
  pool.Publish(used, Key(0, 1));
  pool.Publish(unused, Key(0, 2));
  pool.Release(unused);
  pool.ReleaseCache();
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_FALSE(pool.Find(Key(0, 1)));
  EXPECT_FALSE(pool.Find(Key(0, 2)));
  EXPECT_EQ(pool.num_references(used), 1);
  EXPECT_EQ(pool.num_available(), 1);
  pool.Release(used);
  EXPECT_EQ(pool.num_cached(), 0);
  EXPECT_EQ(pool.num_available(), 2);
}

TEST(BlockPool, WithoutPrefixCachingNothingIsFound) {
  BlockPool pool(1, 4, false);
  EXPECT_EQ(pool.Publish(pool.Allocate(), Key(0, 1)), 0u);
  EXPECT_FALSE(pool.Find(Key(0, 1)));
  pool.Release(0);
  EXPECT_EQ(pool.num_cached(), 0);
}

}  // namespace
}  // namespace taopd::testing
