// The pages of the KV cache: which blocks are in use, by how many sequences, and which of them hold
// the keys and values of a known prefix. It keeps numbers only; the memory belongs to the runner.
//
// A block holds `block_tokens` consecutive tokens of all layers. It is in one of three states:
//   free    nobody refers to it, and its contents are meaningless
//   in use  its reference count is at least 1
//   cached  nobody refers to it, but a prefix that it holds can still be found; the least recently
//           used one is evicted when no block is free
// A block in use may be findable as well. num_available() counts the blocks that Allocate can hand
// out: the free and the cached ones.
//
// The prefix cache is a tree. A full block is found by its token ids and by the entry of the block
// before it; a first block by its token ids, the weight version and a salt. Keys are compared in
// full, so that no hash collision can give a sequence another sequence's keys and values. The
// number of an entry is never used twice.
//
// The same calls give the same blocks: Allocate takes the free block with the lowest number, and
// evicts in the order of release. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

namespace taopd {

// Names the contents of a full block.
struct PrefixKey {
  uint64_t parent = 0;  // the entry of the block before; 0 = this is a sequence's first block
  // Set only for a first block; otherwise 0 and empty.
  uint64_t weight_version = 0;
  std::string salt;
  std::vector<int32_t> token_ids;  // [block_tokens]

  bool operator==(const PrefixKey&) const = default;
};

struct PrefixKeyHash {
  size_t operator()(const PrefixKey& key) const;
};

struct CachedBlock {
  int32_t block = 0;
  uint64_t entry = 0;
};

class BlockPool {
 public:
  // Without `prefix_caching`, Find finds nothing and Publish does nothing.
  // REQUIRES: num_blocks >= 0, block_tokens >= 1.
  BlockPool(int64_t num_blocks, int64_t block_tokens, bool prefix_caching);

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t block_tokens() const { return block_tokens_; }
  bool prefix_caching() const { return prefix_caching_; }
  // The number of blocks that hold `num_tokens` tokens.
  int64_t NumBlocksFor(int64_t num_tokens) const {
    return (num_tokens + block_tokens_ - 1) / block_tokens_;
  }
  int64_t num_available() const { return num_blocks() - num_in_use_; }
  int64_t num_in_use() const { return num_in_use_; }
  int64_t num_cached() const { return static_cast<int64_t>(cached_.size()); }
  uint64_t num_evictions() const { return num_evictions_; }
  int32_t num_references(int32_t block) const { return blocks_[block].num_references; }

  // Returns a block with one reference. REQUIRES: num_available() > 0.
  int32_t Allocate();
  // Adds a reference to a block that is in use or cached.
  void AddReference(int32_t block);
  // Removes a reference. Without references, the block becomes cached if it can be found, else
  // free.
  void Release(int32_t block);

  // Returns the block that was published by this key, if it still can be found. Does not change the
  // order of eviction; AddReference and Release do.
  std::optional<CachedBlock> Find(const PrefixKey& key) const;
  // Makes a block findable, and returns its entry. If another block can be found by that key
  // already, that one stays, and its entry is returned. Returns 0 if prefix caching is off.
  // REQUIRES: the block is in use, cannot be found yet, and is not written any more.
  uint64_t Publish(int32_t block, PrefixKey key);
  // Makes all blocks unfindable; the cached ones become free.
  void ReleaseCache();

 private:
  struct Block {
    int32_t num_references = 0;
    uint64_t entry = 0;                            // 0 = cannot be found
    const PrefixKey* key = nullptr;                // the entry's key, which is owned by findable_
    std::list<int32_t>::iterator cached_position;  // valid while the block is cached
  };

  void Forget(Block* block);

  const int64_t block_tokens_;
  const bool prefix_caching_;
  std::vector<Block> blocks_;
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
  std::list<int32_t> cached_;  // the cached blocks, the least recently used one first
  std::unordered_map<PrefixKey, int32_t, PrefixKeyHash> findable_;
  int64_t num_in_use_ = 0;
  uint64_t next_entry_ = 1;
  uint64_t num_evictions_ = 0;
};

}  // namespace taopd
