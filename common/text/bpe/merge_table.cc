#include "common/text/bpe/merge_table.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"

namespace taopd {

MergeTable::MergeTable(const std::vector<BpeMerge>& merges) {
  TAOPD_CHECK_LT(merges.size(), size_t{kNoRank});
  // The table is at most half full.
  const uint64_t num_slots = std::bit_ceil(std::max<uint64_t>(2 * merges.size(), 2));
  slots_.assign(num_slots, kFree);
  mask_ = num_slots - 1;
  merged_ids_.reserve(merges.size());
  for (const BpeMerge& merge : merges) {
    for (const int32_t id : {merge.left_id, merge.right_id}) {
      TAOPD_CHECK_GE(id, 0);
      TAOPD_CHECK_LT(id, int32_t{1} << kIdBits);
    }
    const uint64_t pair = PairOf(merge.left_id, merge.right_id);
    size_t place = absl::HashOf(pair) & mask_;
    while (slots_[place] != kFree && slots_[place] >> kRankBits != pair) {
      place = (place + 1) & mask_;
    }
    slots_[place] = pair << kRankBits | merged_ids_.size();
    merged_ids_.push_back(merge.merged_id);
  }
}

}  // namespace taopd
