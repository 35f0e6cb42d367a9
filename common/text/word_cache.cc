#include "common/text/word_cache.h"

#include <algorithm>
#include <cstring>

namespace taopd {

size_t WordCache::PlaceOf(std::string_view word) {
  // The first and the last 8 bytes overlap up to 16, which is most words; the middle of longer ones
  // is left out, and only makes them compete for a place.
  uint64_t head = 0, tail = 0;
  std::memcpy(&head, word.data(), std::min<size_t>(word.size(), sizeof(head)));
  if (word.size() > sizeof(head)) {
    std::memcpy(&tail, word.data() + word.size() - sizeof(tail), sizeof(tail));
  }
  uint64_t hash = (head ^ (tail * 0xC2B2AE3D27D4EB4Fu) ^ word.size()) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  hash *= 0x9E3779B97F4A7C15u;
  constexpr int kIndexBits = 15;
  static_assert(size_t{1} << kIndexBits == kNumEntries);
  return hash >> (64 - kIndexBits);
}

bool WordCache::Find(std::string_view word, std::vector<int32_t>* ids) const {
  if (word.size() > kMaxWordBytes) return false;
  const Entry& entry = entries_[PlaceOf(word)];
  if (entry.num_bytes != word.size() || word.empty() ||
      std::memcmp(entry.word.data(), word.data(), word.size()) != 0) {
    return false;
  }
  ids->insert(ids->end(), entry.ids.begin(), entry.ids.begin() + entry.num_ids);
  return true;
}

void WordCache::Insert(std::string_view word, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxWordBytes || ids.size() > kMaxIds) return;
  Entry& entry = entries_[PlaceOf(word)];
  entry.num_bytes = static_cast<uint8_t>(word.size());
  entry.num_ids = static_cast<uint8_t>(ids.size());
  std::copy(word.begin(), word.end(), entry.word.begin());
  std::copy(ids.begin(), ids.end(), entry.ids.begin());
}

std::unique_ptr<WordCache> WordCachePool::Take() {
  {
    const absl::MutexLock lock(&mutex_);
    if (!free_.empty()) {
      std::unique_ptr<WordCache> cache = std::move(free_.back());
      free_.pop_back();
      return cache;
    }
  }
  return std::make_unique<WordCache>();
}

void WordCachePool::Return(std::unique_ptr<WordCache> cache) {
  const absl::MutexLock lock(&mutex_);
  free_.push_back(std::move(cache));
}

}  // namespace taopd
