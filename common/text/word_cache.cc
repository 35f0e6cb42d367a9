#include "common/text/word_cache.h"

#include <algorithm>
#include <cstring>

namespace taopd {

size_t WordCache::ShardOf(absl::string_view word) const {
  // A cheap hash of the first bytes and the length is enough to spread the locks.
  uint64_t head = word.size();
  std::memcpy(&head, word.data(), std::min<size_t>(word.size(), sizeof(head)));
  return static_cast<size_t>((head * 0x9E3779B97F4A7C15u) >> 59) % kNumShards;
}

bool WordCache::Find(std::string_view word, std::vector<int32_t>* ids) const {
  const absl::string_view key(word.data(), word.size());
  const Shard& shard = shards_[ShardOf(key)];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  const auto found = shard.words.find(key);
  if (found == shard.words.end()) return false;
  ids->insert(ids->end(), found->second.begin(), found->second.end());
  return true;
}

void WordCache::Insert(std::string_view word, std::span<const int32_t> ids) {
  Shard& shard = shards_[ShardOf({word.data(), word.size()})];
  const std::lock_guard<std::mutex> lock(shard.mutex);
  // Starting afresh costs less than keeping an order of use, and follows a change of language.
  if (shard.words.size() >= kMaxWordsPerShard) shard.words.clear();
  shard.words.try_emplace(std::string(word), ids.begin(), ids.end());
}

}  // namespace taopd
