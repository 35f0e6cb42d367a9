#include "common/engine/scheduling/block_pool.h"

#include <absl/hash/hash.h>

#include <utility>

#include "common/base/check.h"

namespace taopd {

size_t PrefixKeyHash::operator()(const PrefixKey& key) const {
  return absl::HashOf(key.parent, key.weight_version, key.salt, key.token_ids);
}

BlockPool::BlockPool(int64_t num_blocks, int64_t block_tokens, bool prefix_caching)
    : block_tokens_(block_tokens), prefix_caching_(prefix_caching) {
  TAOPD_CHECK_GE(num_blocks, 0);
  TAOPD_CHECK_LE(num_blocks, INT32_MAX);
  TAOPD_CHECK_GE(block_tokens, 1);
  blocks_.resize(num_blocks);
  for (int64_t block = 0; block < num_blocks; ++block) free_.push(static_cast<int32_t>(block));
}

int32_t BlockPool::Allocate() {
  TAOPD_CHECK_GT(num_available(), 0);
  int32_t block = 0;
  if (!free_.empty()) {
    block = free_.top();
    free_.pop();
  } else {
    block = cached_.front();
    cached_.pop_front();
    Forget(&blocks_[block]);
    ++num_evictions_;
  }
  blocks_[block].num_references = 1;
  ++num_in_use_;
  return block;
}

void BlockPool::AddReference(int32_t block) {
  Block& entry = blocks_[block];
  if (entry.num_references == 0) {
    TAOPD_CHECK(entry.entry != 0);
    cached_.erase(entry.cached_position);
    ++num_in_use_;
  }
  ++entry.num_references;
}

void BlockPool::Release(int32_t block) {
  Block& entry = blocks_[block];
  TAOPD_CHECK_GT(entry.num_references, 0);
  if (--entry.num_references > 0) return;
  --num_in_use_;
  if (entry.entry != 0) {
    entry.cached_position = cached_.insert(cached_.end(), block);
  } else {
    free_.push(block);
  }
}

std::optional<CachedBlock> BlockPool::Find(const PrefixKey& key) const {
  const auto found = findable_.find(key);
  if (found == findable_.end()) return std::nullopt;
  return CachedBlock{found->second, blocks_[found->second].entry};
}

uint64_t BlockPool::Publish(int32_t block, PrefixKey key) {
  if (!prefix_caching_) return 0;
  Block& published = blocks_[block];
  TAOPD_CHECK_GT(published.num_references, 0);
  TAOPD_CHECK(published.entry == 0);
  TAOPD_CHECK_EQ(static_cast<int64_t>(key.token_ids.size()), block_tokens_);
  const auto [position, inserted] = findable_.emplace(std::move(key), block);
  if (!inserted) return blocks_[position->second].entry;
  published.entry = next_entry_++;
  published.key = &position->first;
  return published.entry;
}

void BlockPool::ReleaseCache() {
  for (Block& block : blocks_) {
    if (block.entry != 0) Forget(&block);
  }
  for (int32_t block : cached_) free_.push(block);
  cached_.clear();
}

void BlockPool::Forget(Block* block) {
  findable_.erase(findable_.find(*block->key));
  block->key = nullptr;
  block->entry = 0;
}

}  // namespace taopd
