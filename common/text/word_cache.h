// Token ids of words seen before: natural text repeats its words. Thread-safe and bounded; what is
// dropped is only computed again.
#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/strings/string_view.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace taopd {

class WordCache {
 public:
  // Longer words are rarely seen twice.
  static constexpr size_t kMaxWordBytes = 64;

  // Appends the word's ids; false when it is not here.
  bool Find(std::string_view word, std::vector<int32_t>* ids) const;
  void Insert(std::string_view word, std::span<const int32_t> ids);

 private:
  // Shards keep threads from waiting for each other.
  static constexpr size_t kNumShards = 32;
  static constexpr size_t kMaxWordsPerShard = 2048;
  struct Shard {
    // Not absl::Mutex: the packaged Abseil checks it for deadlocks, at several times the cost.
    mutable std::mutex mutex;
    absl::flat_hash_map<std::string, std::vector<int32_t>> words;  // guarded by mutex
  };
  size_t ShardOf(absl::string_view word) const;
  std::array<Shard, kNumShards> shards_;
};

}  // namespace taopd
