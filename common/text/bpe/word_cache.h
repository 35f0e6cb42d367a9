// Token ids of words seen before: natural text repeats its words. Bounded; what is dropped is only
// computed again.
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

// One thread at a time. Short words with few ids, which is nearly all, are found with one access to
// memory: two of them share a cache line, and the newer word takes the older one's place. The
// others have a table of their own, a cache line each.
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

  // Where a word would be.
  struct Place {
    // Of a short word: bytes 0 to 13 with zeros behind it, and its size in byte 14.
    uint64_t head;
    uint64_t tail;
    size_t index;
  };
  // Starts to fetch the place from memory, so that a caller with several words waits once.
  Place Locate(std::string_view word) const;
  // The word's ids, valid until the next Insert; empty when it is not here.
  std::span<const int32_t> Find(std::string_view word, const Place& place) const;
  std::span<const int32_t> Find(std::string_view word) const { return Find(word, Locate(word)); }
  // Does nothing for a word or result that has no room in an entry, or is empty.
  void Insert(std::string_view word, std::span<const int32_t> ids);

 private:
  struct ShortEntry {
    uint64_t head = 0;
    uint64_t tail_and_num_ids = 0;  // a place's tail, and the number of ids in the last byte
    std::array<int32_t, kMaxShortWordIds> ids;
  };
  struct alignas(64) ShortLine {
    std::array<ShortEntry, 2> entries;  // the newer first
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

// As many caches as there are threads at work at a time; any thread may take one.
class WordCachePool {
 public:
  // A cache for the lease's life.
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
