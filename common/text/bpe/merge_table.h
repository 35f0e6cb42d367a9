// The merges of a byte-pair encoding by their pair. A word that was not seen before asks for some
// twenty pairs, most of which have no merge, so a look-up must cost one cache line. Immutable; any
// thread.
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

class MergeTable {
 public:
  static constexpr int32_t kIdBits = 20;
  static constexpr int32_t kRankBits = 24;
  static constexpr uint32_t kNoRank = (uint32_t{1} << kRankBits) - 1;

  // merges: by rank; of a repeated pair the last counts. REQUIRES: ids in [0, 2^20), fewer than
  // 2^24 - 1 merges; tokenizer_json.h keeps to less.
  explicit MergeTable(const std::vector<BpeMerge>& merges);

  // The rank of a pair of ids, kNoRank where it has no merge.
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
  static constexpr uint64_t kFree = ~uint64_t{0};  // no pair with a rank: all ranks are < kNoRank

  static uint64_t PairOf(int32_t left_id, int32_t right_id) {
    return static_cast<uint64_t>(left_id) << kIdBits | static_cast<uint32_t>(right_id);
  }

  // Open addressing: the pair above, its rank in the low bits.
  std::vector<uint64_t> slots_;
  uint64_t mask_;
  std::vector<int32_t> merged_ids_;  // by rank
};

}  // namespace taopd
