// The part of the Scheduler that shares the pool between clients: what each client holds, and which
// sequences are preempted for others.
#include <algorithm>

#include "common/engine/scheduling/scheduler.h"

namespace taopd {

int64_t Scheduler::NumReservedBlocks() const {
  int64_t num_reserved = 0;
  for (const auto& [admission, sequence] : running_) {
    if (sequence->scheduling.uncached || sequence->scheduling.leader != nullptr) continue;
    num_reserved += pool_.NumBlocksFor(sequence->num_rows_needed()) -
                    static_cast<int64_t>(sequence->blocks.size()) +
                    static_cast<int64_t>(sequence->scheduling.followers.size());
  }
  return num_reserved;
}

int64_t Scheduler::NumHeldBlocks(const Sequence& sequence) const {
  if (sequence.scheduling.uncached) return 0;
  if (sequence.scheduling.leader != nullptr) return 1;
  return std::max(static_cast<int64_t>(sequence.blocks.size()),
                  pool_.NumBlocksFor(sequence.num_rows_needed()));
}

Scheduler::Holdings Scheduler::HoldingsOfClients() const {
  Holdings holdings;
  for (const auto& [admission, sequence] : running_) {
    if (sequence->scheduling.uncached) continue;
    Holding& holding = holdings[sequence->request.client];
    holding.num_seats += sequence->generates();
    holding.num_blocks += NumHeldBlocks(*sequence);
    holding.sequences.push_back(sequence.get());
  }
  return holdings;
}

int64_t Scheduler::NumBlocksToAdmit(const Sequence& sequence) const {
  if (LeaderOf(sequence) != nullptr) return 1;
  const CachedPrefix prefix = FindPrefix(sequence);
  return pool_.NumBlocksFor(sequence.num_rows_needed()) -
         std::count_if(prefix.blocks.begin(), prefix.blocks.end(),
                       [&](int32_t block) { return pool_.num_references(block) > 0; });
}

std::pair<Scheduler::Holding*, size_t> Scheduler::FindVictim(
    const Sequence& sequence, Right right, int64_t Holding::*amount,
    const std::function<int64_t(const Sequence&)>& gives, const Holding& own,
    Holdings* holdings) const {
  std::pair<Holding*, size_t> found = {nullptr, 0};
  for (auto& [client, holding] : *holdings) {
    if (found.first != nullptr && holding.*amount <= found.first->*amount) continue;
    const bool may_take =
        right == Right::kAll || (&holding != &own && holding.sequences.size() > 1);
    for (size_t i = holding.sequences.size(); may_take && i-- > 0;) {
      const Sequence& other = *holding.sequences[i];
      const int64_t given = gives(other);
      if (given <= 0 || IsFirst(other) || &other == LeaderOf(sequence)) continue;
      if (right != Right::kShare || holding.*amount - given >= own.*amount) found = {&holding, i};
      break;
    }
  }
  return found;
}

bool Scheduler::TakeRoom(Sequence* sequence, Right right, Step* step) {
  const int64_t num_blocks = NumBlocksToAdmit(*sequence);
  Holdings holdings = HoldingsOfClients();
  Holding& own = holdings[sequence->request.client];
  own.num_seats += sequence->generates();
  own.num_blocks += num_blocks;

  std::vector<Sequence*> victims;
  // The victim leaves the holdings. Returns null if nobody has to give way.
  const auto take = [&](int64_t Holding::*amount, const auto& gives) -> Sequence* {
    const auto [largest, index] = FindVictim(*sequence, right, amount, gives, own, &holdings);
    if (largest == nullptr) return nullptr;
    Sequence* const victim = largest->sequences[index];
    largest->sequences.erase(largest->sequences.begin() + static_cast<int64_t>(index));
    largest->num_seats -= victim->generates();
    largest->num_blocks -= NumHeldBlocks(*victim);
    victims.push_back(victim);
    return victim;
  };
  const auto seats_of = [](const Sequence& other) -> int64_t { return other.generates(); };
  // A block that others hold as well does not become free.
  const auto blocks_of = [&](const Sequence& other) {
    return NumHeldBlocks(other) -
           std::count_if(other.blocks.begin(), other.blocks.end(),
                         [&](int32_t block) { return pool_.num_references(block) > 1; });
  };
  int64_t missing = num_blocks - (pool_.num_available() - NumReservedBlocks() - Watermark());
  const bool lacks_seat = sequence->generates() && num_generating_ >= NumSeats();
  if (lacks_seat || step->budget == 0) {
    Sequence* const victim = take(&Holding::num_seats, seats_of);
    if (victim == nullptr) return false;
    missing -= blocks_of(*victim);
  }
  const auto held_by = [this](const Sequence& other) { return NumHeldBlocks(other); };
  while (missing > 0) {
    Sequence* const victim = right == Right::kAll ? take(&Holding::num_blocks, held_by)
                                                  : take(&Holding::num_blocks, blocks_of);
    if (victim == nullptr && right == Right::kAll) break;  // a single sequence fits
    if (victim == nullptr) return false;
    missing -= blocks_of(*victim);
  }
  for (Sequence* victim : victims) {
    if (victim->scheduling.state == State::kRunning) Preempt(victim, step);
  }
  return true;
}

bool Scheduler::MayPass(const Sequence& sequence) const {
  const int64_t num_blocks = NumBlocksToAdmit(sequence);
  const Holdings holdings = HoldingsOfClients();
  const auto own = holdings.find(sequence.request.client);
  const int64_t held = own == holdings.end() ? 0 : own->second.num_blocks;
  return std::any_of(holdings.begin(), holdings.end(), [&](const auto& item) {
    return item.first != sequence.request.client && held + num_blocks <= item.second.num_blocks;
  });
}

Sequence* Scheduler::VictimFor(Sequence* requester) const {
  Sequence* victim = requester;
  int64_t most = -1;
  for (const auto& [client, holding] : HoldingsOfClients()) {
    const auto newest =
        std::find_if(holding.sequences.rbegin(), holding.sequences.rend(), [&](Sequence* other) {
          return other == requester || (!other->blocks.empty() && !IsFirst(*other));
        });
    if (newest == holding.sequences.rend() || holding.num_blocks < most) continue;
    const bool newer = (*newest)->scheduling.admission > victim->scheduling.admission;
    if (holding.num_blocks == most && !newer) continue;
    most = holding.num_blocks;
    victim = *newest;
  }
  return victim;
}

bool Scheduler::MayRunUncached(const Sequence& sequence) const {
  const Sequence::Scheduling& notes = sequence.scheduling;
  const bool one_pass = !sequence.generates() || (sequence.request.sampling->max_new_tokens == 1 &&
                                                  sequence.request.sampling->mask == nullptr);
  return one_pass && notes.state == State::kWaiting && !notes.uncached &&
         waiting_.num_active_clients() > 1 &&
         sequence.num_rows_needed() <= limits_.max_num_batched_tokens &&
         !prompt_clients_.contains(sequence.request.client);
}

}  // namespace taopd
