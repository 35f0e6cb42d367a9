// Finds the merge of a pair of ids. Encoding a new word looks up about twenty pairs, most of which
// have no merge, so a look-up must touch only one cache line.
#pragma once

#include <absl/hash/hash.h>

#include <cstdint>
#include <vector>

namespace taopd {

struct BpeMerge {
  int32_t left_id;
  int32_t right_id;
  int32_t merged_id;
};

// Immutable and thread-safe.
class MergeTable {
 public:
  static constexpr int32_t kIdBits = 20;
  static constexpr int32_t kRankBits = 24;
  static constexpr uint32_t kNoRank = (uint32_t{1} << kRankBits) - 1;

  // `merges` are in the order of their ranks; the last occurrence of a repeated pair counts.
  // REQUIRES: ids are in [0, 2^20), and there are fewer than 2^24 - 1 merges. The limits of
  // tokenizer_json.h are lower.
  explicit MergeTable(const std::vector<BpeMerge>& merges);

  // Returns the rank of a pair of ids, or kNoRank if it has no merge.
  uint32_t RankOf(int32_t left_id, int32_t right_id) const {
    const uint64_t pair = PairOf(left_id, right_id);
    const uint64_t* slots = slots_.data();
    for (size_t place = absl::HashOf(pair) & mask_;; place = (place + 1) & mask_) {
      const uint64_t slot = slots[place];
      if (slot >> kRankBits == pair) return static_cast<uint32_t>(slot) & kNoRank;
      if (slot == kFree) return kNoRank;
    }
  }
  int32_t MergedId(uint32_t rank) const { return merged_ids_[rank]; }

 private:
  // Equals no used slot, because all ranks are below kNoRank.
  static constexpr uint64_t kFree = ~uint64_t{0};

  static uint64_t PairOf(int32_t left_id, int32_t right_id) {
    return static_cast<uint64_t>(left_id) << kIdBits | static_cast<uint32_t>(right_id);
  }

  // Open addressing. A slot holds the pair in its high bits and the rank in its low bits.
  std::vector<uint64_t> slots_;
  uint64_t mask_;
  std::vector<int32_t> merged_ids_;  // by rank
};

}  // namespace taopd
