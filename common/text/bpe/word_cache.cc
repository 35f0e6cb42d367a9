#include "common/text/bpe/word_cache.h"

#include <algorithm>
#include <cstring>

namespace taopd {
namespace {

constexpr int kSizeShift = 48;    // byte 14 of a key
constexpr int kNumIdsShift = 56;  // byte 15

template <typename T>
uint64_t Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// The top bits depend on all bits of both halves.
uint64_t Hash(uint64_t head, uint64_t tail) {
  uint64_t hash = (head ^ (tail * 0xC2B2AE3D27D4EB4Fu)) * 0x9E3779B97F4A7C15u;
  hash ^= hash >> 32;
  return hash * 0x9E3779B97F4A7C15u;
}

}  // namespace

// Loads that overlap replace a copy of variable size: each byte is or'ed into its place, some bytes
// twice. (On a big-endian processor the keys differ but are just as distinct.)
// REQUIRES: 0 < word.size() <= kMaxShortWordBytes.
WordCache::Place WordCache::ShortPlaceOf(std::string_view word) {
  const char* bytes = word.data();
  const size_t size = word.size();
  Place place{0, static_cast<uint64_t>(size) << kSizeShift, 0};
  if (size > 8) {
    place.head = Load<uint64_t>(bytes);
    place.tail |= Load<uint64_t>(bytes + size - 8) >> (8 * (16 - size));
  } else if (size >= 4) {
    place.head = Load<uint32_t>(bytes) | Load<uint32_t>(bytes + size - 4) << (8 * (size - 4));
  } else {
    place.head = Load<uint8_t>(bytes) | Load<uint8_t>(bytes + size / 2) << (8 * (size / 2)) |
                 Load<uint8_t>(bytes + size - 1) << (8 * (size - 1));
  }
  place.index = Hash(place.head, place.tail) >> (64 - kShortLineBits);
  return place;
}

// REQUIRES: word.size() <= kMaxWordBytes.
size_t WordCache::LongIndexOf(std::string_view word) {
  // The middle of a word is ignored. Words that differ only there compete for one place.
  uint64_t head = 0, tail = 0;
  if (word.size() >= 8) {
    head = Load<uint64_t>(word.data());
    tail = Load<uint64_t>(word.data() + word.size() - 8);
  } else {
    std::memcpy(&head, word.data(), word.size());
  }
  return Hash(head ^ word.size(), tail) >> (64 - kLongEntryBits);
}

WordCache::Place WordCache::Locate(std::string_view word) const {
  if (word.empty() || word.size() > kMaxWordBytes) return {};
  if (word.size() <= kMaxShortWordBytes) {
    const Place place = ShortPlaceOf(word);
    __builtin_prefetch(short_lines_.data() + place.index);
    return place;
  }
  const Place place{0, 0, LongIndexOf(word)};
  __builtin_prefetch(long_entries_.data() + place.index);
  return place;
}

std::span<const int32_t> WordCache::Find(std::string_view word, const Place& place) const {
  if (word.empty() || word.size() > kMaxWordBytes) return {};
  size_t long_index = place.index;
  if (word.size() <= kMaxShortWordBytes) {
    for (const ShortEntry& entry : short_lines_[place.index].entries) {
      // The two are equal except for the number of ids.
      if (entry.head == place.head && (entry.tail_and_num_ids ^ place.tail) << 8 == 0) {
        return {entry.ids.data(), entry.tail_and_num_ids >> kNumIdsShift};
      }
    }
    long_index = LongIndexOf(word);  // a short word with many ids
  }
  const LongEntry& entry = long_entries_[long_index];
  if (entry.num_bytes != word.size() ||
      std::memcmp(entry.word.data(), word.data(), word.size()) != 0) {
    return {};
  }
  return {entry.ids.data(), entry.num_ids};
}

void WordCache::Insert(std::string_view word, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxWordBytes || ids.empty() || ids.size() > kMaxIds) return;
  if (word.size() <= kMaxShortWordBytes && ids.size() <= kMaxShortWordIds) {
    const Place place = ShortPlaceOf(word);
    ShortLine& line = short_lines_[place.index];
    line.entries[1] = line.entries[0];
    ShortEntry& entry = line.entries[0];
    entry.head = place.head;
    entry.tail_and_num_ids = place.tail | static_cast<uint64_t>(ids.size()) << kNumIdsShift;
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
    return;
  }
  LongEntry& entry = long_entries_[LongIndexOf(word)];
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
