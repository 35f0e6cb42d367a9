// Byte-pair encoding of words: while two neighbors in a word form a known pair, the pair with the
// lowest rank is merged; of equal pairs, the leftmost.
#pragma once

#include <absl/container/flat_hash_map.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/text/bpe/merge_table.h"
#include "common/text/bpe/word_cache.h"

namespace taopd {

// Immutable and thread-safe.
class Bpe {
 public:
  //   merges        in the order of their ranks; the last occurrence of a repeated pair counts
  //   byte_ids      the token of each byte; bytes with -1 are dropped, as HF tokenizers drops those
  //                 without a token
  //   whole_words   words that are one token regardless of the merges (ignore_merges); may be empty
  Bpe(const std::vector<BpeMerge>& merges, const std::array<int32_t, 256>& byte_ids,
      absl::flat_hash_map<std::string, int32_t> whole_words)
      : merges_(merges), byte_ids_(byte_ids), whole_words_(std::move(whole_words)) {}

  // Appends the ids of the words in order. Takes time O(n log n) for a word of length n.
  // `cache` may be null; it must not be shared with another tokenizer.
  void Encode(std::span<const std::string_view> words, WordCache* cache,
              std::vector<int32_t>* ids) const;
  // Returns the number of a word's bytes that Encode drops.
  int64_t CountDropped(std::string_view word) const;
  // Returns whether Encode drops any byte at all.
  bool drops_bytes() const;

 private:
  void EncodeNew(std::string_view word, std::vector<int32_t>* ids) const;
  void MergeShort(std::span<int32_t> symbols, std::vector<int32_t>* ids) const;
  void MergeLong(std::vector<int32_t> symbols, std::vector<int32_t>* ids) const;

  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<std::string, int32_t> whole_words_;
};

}  // namespace taopd
