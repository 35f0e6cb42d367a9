// Byte-pair encoding of one word: as long as two neighbours form a known pair, the pair of the
// lowest rank (the leftmost of equals) is merged. Immutable; any thread.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/word_cache.h"

namespace taopd {

struct BpeMerge {
  int32_t left_id;
  int32_t right_id;
  int32_t merged_id;
};

class Bpe {
 public:
  // merges: by rank; of a repeated pair the last counts. byte_ids: the token of each byte; bytes
  // with -1 are dropped, as HF tokenizers drops what it has no token for. whole_words: words that
  // are one token whatever the merges say (ignore_merges); may be empty.
  Bpe(const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& byte_ids,
      absl::flat_hash_map<std::string, int32_t> whole_words);

  // Appends the ids of a word. n log n in its length. The cache, which may be null, is one that
  // only this tokenizer fills.
  void Encode(std::string_view word, WordCache* cache, std::vector<int32_t>* ids) const;

 private:
  struct RankedMerge {
    int32_t rank;
    int32_t merged_id;
  };
  static constexpr int32_t kNoRank = INT32_MAX;

  RankedMerge Find(int32_t left_id, int32_t right_id) const;
  std::vector<int32_t> MergeShort(std::vector<int32_t> symbols) const;
  std::vector<int32_t> MergeLong(std::vector<int32_t> symbols) const;

  absl::flat_hash_map<uint64_t, RankedMerge> merges_;
  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<std::string, int32_t> whole_words_;
};

}  // namespace taopd
