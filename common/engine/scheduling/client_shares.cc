#include "common/engine/scheduling/client_shares.h"

#include <algorithm>

namespace taopd {

int64_t ClientShares::NumHeldBlocks(const Sequence& sequence) const {
  if (sequence.scheduling.leader != nullptr) return 1;
  return std::max(static_cast<int64_t>(sequence.blocks.size()),
                  pool_.NumBlocksFor(sequence.num_rows_needed()));
}

int64_t ClientShares::NumFreedBlocks(const Sequence& sequence) const {
  return NumHeldBlocks(sequence) -
         std::count_if(sequence.blocks.begin(), sequence.blocks.end(),
                       [&](int32_t block) { return pool_.num_references(block) > 1; });
}

int64_t ClientShares::FreedAmount(const Sequence& sequence, Resource resource,
                                  PreemptionLimit limit) const {
  if (resource == Resource::kSlots) return sequence.generates();
  return limit == PreemptionLimit::kAll ? NumHeldBlocks(sequence) : NumFreedBlocks(sequence);
}

void ClientShares::Add(Sequence* sequence) {
  Holding& holding = holdings_[sequence->request.client];
  holding.num_slots += sequence->generates();
  holding.num_blocks += NumHeldBlocks(*sequence);
  holding.sequences.push_back(sequence);
}

void ClientShares::AddRequest(const Sequence& sequence, int64_t num_blocks) {
  Holding& own = holdings_[sequence.request.client];
  own.num_slots += sequence.generates();
  own.num_blocks += num_blocks;
  own_ = &own;
}

Sequence* ClientShares::RemoveVictim(Resource resource, PreemptionLimit limit,
                                     const Sequence* leader) {
  Holding* largest = nullptr;
  size_t index = 0;  // of the victim in `largest`
  for (auto& [client, holding] : holdings_) {
    const int64_t amount = holding.Amount(resource);
    if (largest != nullptr && amount <= largest->Amount(resource)) continue;
    if (limit != PreemptionLimit::kAll && (&holding == own_ || holding.sequences.size() <= 1))
      continue;
    for (size_t i = holding.sequences.size(); i-- > 0;) {
      const Sequence& other = *holding.sequences[i];
      const int64_t freed = FreedAmount(other, resource, limit);
      if (freed <= 0 || other.handle == oldest_ || &other == leader) continue;
      const bool keeps_enough =
          limit != PreemptionLimit::kShare || amount - freed >= own_->Amount(resource);
      if (keeps_enough) {
        largest = &holding;
        index = i;
      }
      break;
    }
  }
  if (largest == nullptr) return nullptr;
  Sequence* const victim = largest->sequences[index];
  largest->sequences.erase(largest->sequences.begin() + static_cast<int64_t>(index));
  largest->num_slots -= victim->generates();
  largest->num_blocks -= NumHeldBlocks(*victim);
  return victim;
}

bool ClientShares::OtherHoldsAsMuch() const {
  return std::any_of(holdings_.begin(), holdings_.end(), [this](const auto& item) {
    return &item.second != own_ && item.second.num_blocks >= own_->num_blocks;
  });
}

Sequence* ClientShares::VictimForGrowth(Sequence* requester) const {
  Sequence* victim = requester;
  int64_t most = -1;
  for (const auto& [client, holding] : holdings_) {
    const auto newest =
        std::find_if(holding.sequences.rbegin(), holding.sequences.rend(), [&](Sequence* other) {
          return other == requester || (!other->blocks.empty() && other->handle != oldest_);
        });
    if (newest == holding.sequences.rend() || holding.num_blocks < most) continue;
    const bool is_newer = (*newest)->scheduling.admission > victim->scheduling.admission;
    if (holding.num_blocks == most && !is_newer) continue;
    most = holding.num_blocks;
    victim = *newest;
  }
  return victim;
}

}  // namespace taopd
