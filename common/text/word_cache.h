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

// One thread at a time: a table in which each word has one place, and the newest word of a place
// stays. An entry is one cache line; longer words are rarely seen twice.
class WordCache {
 public:
  static constexpr size_t kMaxWordBytes = 30;
  static constexpr size_t kMaxIds = 8;
  static constexpr size_t kNumEntries = size_t{1} << 15;

  WordCache() : entries_(kNumEntries) {}
  // Appends the word's ids; false when it is not here.
  bool Find(std::string_view word, std::vector<int32_t>* ids) const;
  // Does nothing for a word or result that has no room in an entry.
  void Insert(std::string_view word, std::span<const int32_t> ids);

 private:
  struct alignas(64) Entry {
    uint8_t num_bytes = 0;  // 0: free
    uint8_t num_ids = 0;
    std::array<char, kMaxWordBytes> word;
    std::array<int32_t, kMaxIds> ids;
  };
  static size_t PlaceOf(std::string_view word);

  std::vector<Entry> entries_;
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
