// Caches the token ids of words, because natural text repeats its words. The size is bounded; an
// entry that was dropped is computed again.
#pragma once

#include <absl/synchronization/mutex.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace taopd {

// Not thread-safe. Short words with few ids, which nearly all words are, take one access to memory:
// two of them share a cache line, and a new word replaces the older of the two. Other words are in
// a separate table, with one cache line each.
class WordCache {
 public:
  static constexpr size_t kMaxShortWordBytes = 14;
  static constexpr size_t kMaxShortWordIds = 4;
  static constexpr size_t kMaxWordBytes = 30;
  static constexpr size_t kMaxIds = 8;
  static constexpr int kShortLineBits = 15;
  static constexpr int kLongEntryBits = 12;
  static constexpr size_t kNumEntries =
      (size_t{2} << kShortLineBits) + (size_t{1} << kLongEntryBits);

  WordCache()
      : short_lines_(size_t{1} << kShortLineBits), long_entries_(size_t{1} << kLongEntryBits) {}

  // The place of a word, whether or not it is stored.
  struct Place {
    // For a short word: its bytes, padded with zeros to 14, and its size in byte 14.
    uint64_t head;
    uint64_t tail;
    size_t index;
  };
  // Returns the place of a word and starts to fetch it from memory, so that a caller with several
  // words waits only once.
  Place Locate(std::string_view word) const;
  // Returns the word's ids, valid until the next Insert, or an empty span if the word is not
  // stored.
  std::span<const int32_t> Find(std::string_view word, const Place& place) const;
  std::span<const int32_t> Find(std::string_view word) const { return Find(word, Locate(word)); }
  // Does nothing if the word or its ids are empty or too long for an entry.
  void Insert(std::string_view word, std::span<const int32_t> ids);

 private:
  struct ShortEntry {
    uint64_t head = 0;
    uint64_t tail_and_num_ids = 0;  // Place::tail, and the number of ids in the last byte
    std::array<int32_t, kMaxShortWordIds> ids;
  };
  struct alignas(64) ShortLine {
    std::array<ShortEntry, 2> entries;  // the newer one first
  };
  struct alignas(64) LongEntry {
    uint8_t num_bytes = 0;  // 0: free
    uint8_t num_ids = 0;
    std::array<char, kMaxWordBytes> word;
    std::array<int32_t, kMaxIds> ids;
  };
  static Place ShortPlaceOf(std::string_view word);
  static size_t LongIndexOf(std::string_view word);

  std::vector<ShortLine> short_lines_;
  std::vector<LongEntry> long_entries_;
};

// A pool of as many caches as threads encode at one time. Thread-safe.
class WordCachePool {
 public:
  // Holds one cache of the pool for its lifetime. `pool` must outlive it.
  class Lease {
   public:
    explicit Lease(WordCachePool* pool) : pool_(pool), cache_(pool->Take()) {}
    ~Lease() { pool_->Return(std::move(cache_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    WordCache* get() const { return cache_.get(); }

   private:
    WordCachePool* pool_;
    std::unique_ptr<WordCache> cache_;
  };

 private:
  std::unique_ptr<WordCache> Take();
  void Return(std::unique_ptr<WordCache> cache);

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<WordCache>> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
