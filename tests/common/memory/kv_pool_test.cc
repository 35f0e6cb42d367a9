#include "common/memory/kv_pool.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

constexpr int64_t kBlock = 1000;  // bytes
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

TEST(KvPoolTest, WholeBlocksUpToWhatCanBeFilled) {
  EXPECT_EQ(KvBlocksFor(0), 0);
  EXPECT_EQ(KvBlocksFor(32), 1);
  EXPECT_EQ(KvBlocksFor(33), 2);
  ASSERT_OK_AND_ASSIGN(KvPoolSize size, SizeKvPool(5 * kBlock + 999, kBlock, 64, 100, true));
  EXPECT_EQ(size.num_blocks, 5);
  EXPECT_EQ(size.max_generation_len, 64);
  ASSERT_OK_AND_ASSIGN(size, SizeKvPool(500 * kBlock, kBlock, 65, 7, true));
  EXPECT_EQ(size.num_blocks, 21);
}

TEST(KvPoolTest, ALengthThatNobodyAskedForIsCut) {
  ASSERT_OK_AND_ASSIGN(const KvPoolSize size, SizeKvPool(2 * kBlock, kBlock, 1000, 4, false));
  EXPECT_EQ(size.max_generation_len, 64);
  EXPECT_ERROR(SizeKvPool(2 * kBlock, kBlock, 65, 4, true), kInvalidArgument,
               "kv_cache_bytes 2000 holds no sequence of max_model_len 65, which takes 3000 bytes");
  EXPECT_ERROR(SizeKvPool(kBlock - 1, kBlock, 65, 4, false), kInvalidArgument,
               "holds no block of 32 tokens, which takes 1000 bytes");
}

TEST(KvPoolTest, AbsurdNumbersOfSequencesDoNotOverflow) {
  EXPECT_EQ(MaxKvBlocks(kMost, std::numeric_limits<int64_t>::max()), kMost);
  EXPECT_EQ(MaxKvBlocks(32, std::numeric_limits<int64_t>::max()), kMost);
  EXPECT_EQ(MaxKvBlocks(32, kMost), kMost);
  EXPECT_EQ(MaxKvBlocks(64, 3), 6);
}

}  // namespace
}  // namespace taopd::testing
