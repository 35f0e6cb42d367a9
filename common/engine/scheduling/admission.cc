// The part of the Scheduler that admits sequences and makes room for them. The rest is in
// scheduler.cc.
#include <algorithm>

#include "common/engine/scheduling/scheduler.h"

namespace taopd {
namespace {

// The number of sequences that one step skips singly because they wait for another one's blocks.
// Each further one is skipped together with the later sequences of its client and kind, which
// limits the time of one Schedule.
constexpr int kMaxSkipped = 512;
// A step admits no more sequences once this many have found no room. Each of them is skipped
// together with the later sequences of its client and kind.
constexpr int kMaxRefused = 64;

}  // namespace

void Scheduler::AdmitOverdue(PlanDraft* draft) {
  Sequence* const overdue = NoteWaitOfOldest();
  if (overdue == nullptr || overdue->scheduling.uncached ||
      overdue->scheduling.preempted_in == num_plans_)
    return;
  draft->num_reserved = NumReservedBlocks();
  Admit(overdue, PreemptionLimit::kAll, draft);
}

void Scheduler::AdmitAll(PlanDraft* draft) {
  // The sequences of a single client form one line: a sequence that finds no room stops those after
  // it, and what a preemption has just freed is not given to others in the same step.
  const bool shared = IsShared();
  if (draft->preempted && !shared) return;
  bool others_wait = draft->preempted;  // for blocks
  draft->num_reserved = NumReservedBlocks();
  waiting_.BeginRound();
  int num_skipped = 0;
  int num_refused = 0;
  while (Sequence* next =
             waiting_.Next(shared || draft->budget > 0, shared || num_generating_ < num_slots_)) {
    if (next->scheduling.preempted_in == num_plans_) {
      waiting_.Skip(*next, /*and_later=*/true);
      continue;
    }
    const Admission admission = AdmitInTurn(next, others_wait, draft);
    if (admission == Admission::kAdmitted) continue;
    if (admission == Admission::kWaitsForPrefix) {
      waiting_.Skip(*next, /*and_later=*/++num_skipped >= kMaxSkipped);
      continue;
    }
    if (!shared && admission != Admission::kNoSlot) return;
    // The prompts of one step leave rows in the next one; sequences that decode do not.
    Sequence::Scheduling& scheduling = next->scheduling;
    const bool no_rows = admission == Admission::kNoRows;
    scheduling.passed_over = !no_rows || draft->crowded || scheduling.num_steps_without_rows > 0;
    scheduling.num_steps_without_rows += no_rows;
    others_wait |= admission == Admission::kNoRoom;
    waiting_.Skip(*next, /*and_later=*/true);
    if (++num_refused >= kMaxRefused) return;
  }
}

Scheduler::Admission Scheduler::AdmitInTurn(Sequence* next, bool others_wait, PlanDraft* draft) {
  const bool may_run_uncached = MayRunUncached(*next);
  if (may_run_uncached && draft->crowded && next->num_rows_needed() > draft->budget)
    return Admission::kNoRows;
  if (others_wait) {
    ClientShares shares = SharesOfClients();
    shares.AddRequest(*next, sharing_.NumBlocksToAdmit(*next));
    if (!shares.OtherHoldsAsMuch()) return Admission::kNoRoom;
  }
  const bool may_preempt = IsShared() && !may_run_uncached;
  return Admit(next, may_preempt ? PreemptionLimit::kShare : PreemptionLimit::kNothing, draft);
}

Scheduler::Admission Scheduler::Admit(Sequence* sequence, PreemptionLimit limit, PlanDraft* draft) {
  const Admission admission = TryAdmit(sequence, draft);
  const bool lacks_room = admission == Admission::kNoSlot || admission == Admission::kNoRoom ||
                          (admission == Admission::kNoRows &&
                           (draft->full_of_decodes || limit == PreemptionLimit::kAll));
  if (!lacks_room || limit == PreemptionLimit::kNothing || !MakeRoom(sequence, limit, draft))
    return admission;
  draft->num_reserved = NumReservedBlocks();
  return TryAdmit(sequence, draft);
}

Sequence* Scheduler::NoteWaitOfOldest() {
  if (sequences_.empty()) return nullptr;
  Sequence* const oldest = sequences_.begin()->second;
  int& num_steps = oldest->scheduling.num_steps_waited;
  num_steps = oldest->scheduling.state == State::kRunning ? 0 : num_steps + 1;
  return num_steps > kMaxStepsWaited ? oldest : nullptr;
}

Scheduler::Admission Scheduler::TryAdmit(Sequence* sequence, PlanDraft* draft) {
  if (sequence->generates() && num_generating_ >= num_slots_) return Admission::kNoSlot;
  const int64_t num_spare = NumSpareBlocks(draft->num_reserved);
  if (Sequence* const leader = sharing_.LeaderOf(*sequence)) {
    if (num_spare < 1) return Admission::kNoRoom;
    StartFollowing(sequence, leader, draft);
    return Admission::kAdmitted;
  }
  const CachedPrefix prefix = sharing_.Find(*sequence);
  if (draft->budget > 0 && sharing_.WaitsFor(sequence, prefix)) return Admission::kWaitsForPrefix;
  // A single sequence may take everything.
  if (pool_.num_in_use() > 0 && sharing_.NumNewBlocks(*sequence, prefix) > num_spare)
    return Admission::kNoRoom;
  if (draft->budget == 0) return Admission::kNoRows;
  StartPrompt(sequence, prefix, draft);
  return Admission::kAdmitted;
}

void Scheduler::StartPrompt(Sequence* sequence, const CachedPrefix& prefix, PlanDraft* draft) {
  const int64_t num_rows = sequence->num_rows_needed();
  const int64_t num_cached = static_cast<int64_t>(prefix.blocks.size()) * pool_.block_tokens();
  MoveToRunning(sequence, num_rows - num_cached, /*uncached=*/false);
  sharing_.Start(sequence, prefix);
  if (pool_.prefix_caching()) {
    stats_.prefix_query_tokens += static_cast<uint64_t>(num_rows);
    stats_.prefix_hit_tokens += static_cast<uint64_t>(num_cached);
  }

  const int64_t count = std::min(num_rows - num_cached, draft->budget);
  while (static_cast<int64_t>(sequence->blocks.size()) < pool_.NumBlocksFor(num_cached + count))
    sequence->blocks.push_back(pool_.Allocate());
  draft->num_reserved +=
      pool_.NumBlocksFor(num_rows) - static_cast<int64_t>(sequence->blocks.size());
  AddRows(sequence, count, draft);
  if (SharesPrompt(*sequence, *sequence)) JoinWaitingFollowers(sequence, draft);
}

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

ClientShares Scheduler::SharesOfClients() const {
  ClientShares shares(pool_, sequences_.begin()->first);
  for (const auto& [admission, sequence] : running_) {
    if (!sequence->scheduling.uncached) shares.Add(sequence.get());
  }
  return shares;
}

bool Scheduler::MakeRoom(Sequence* sequence, PreemptionLimit limit, PlanDraft* draft) {
  using Resource = ClientShares::Resource;
  const int64_t num_blocks = sharing_.NumBlocksToAdmit(*sequence);
  ClientShares shares = SharesOfClients();
  shares.AddRequest(*sequence, num_blocks);
  // A sequence that gives up its slot also frees its row of the step.
  bool lacks_slot = (sequence->generates() && num_generating_ >= num_slots_) || draft->budget == 0;
  int64_t num_missing = num_blocks - NumSpareBlocks(NumReservedBlocks());
  std::vector<Sequence*> victims;
  while (lacks_slot || num_missing > 0) {
    const Resource resource = lacks_slot ? Resource::kSlots : Resource::kBlocks;
    Sequence* const victim = shares.RemoveVictim(resource, limit, sharing_.LeaderOf(*sequence));
    if (victim == nullptr && !lacks_slot && limit == PreemptionLimit::kAll)
      break;  // a single sequence fits
    if (victim == nullptr) return false;
    victims.push_back(victim);
    num_missing -= shares.NumFreedBlocks(*victim);
    lacks_slot = false;
  }
  for (Sequence* victim : victims) {
    if (victim->scheduling.state == State::kRunning) Preempt(victim, draft);
  }
  return true;
}

bool Scheduler::MayRunUncached(const Sequence& sequence) const {
  const Sequence::Scheduling& scheduling = sequence.scheduling;
  const bool one_pass = !sequence.generates() || (sequence.request.sampling->max_new_tokens == 1 &&
                                                  sequence.request.sampling->mask == nullptr);
  return one_pass && scheduling.state == State::kWaiting && !scheduling.uncached && IsShared() &&
         sequence.num_rows_needed() <= limits_.max_num_batched_tokens &&
         !prompt_clients_.contains(sequence.request.client);
}

void Scheduler::JoinWaitingFollowers(Sequence* leader, PlanDraft* draft) {
  const int64_t num_slots = num_slots_ - num_generating_;
  for (Sequence* follower : waiting_.WithPromptOf(*leader, num_slots)) {
    if (NumSpareBlocks(draft->num_reserved) < 1) return;
    StartFollowing(follower, leader, draft);
  }
}

void Scheduler::StartFollowing(Sequence* sequence, Sequence* leader, PlanDraft* draft) {
  MoveToRunning(sequence, 1, /*uncached=*/false);
  sequence->scheduling.leader = leader;
  leader->scheduling.followers.push_back(sequence);
  ++draft->num_reserved;
}

void Scheduler::MoveToRunning(Sequence* sequence, int64_t charged_tokens, bool uncached) {
  Sequence::Scheduling& scheduling = sequence->scheduling;
  std::unique_ptr<Sequence> owned = waiting_.Remove(*sequence);
  if (scheduling.state == State::kWaiting) {
    waiting_.Charge(sequence->request.client, charged_tokens);
    scheduling.admission = next_admission_++;
  }
  scheduling.state = State::kRunning;
  scheduling.uncached = uncached;
  scheduling.num_planned = 0;
  num_generating_ += !uncached && sequence->generates();
  num_uncached_running_ += uncached;
  if (sequence->generates() && sequence->request.sampling->mask != nullptr)
    sequence->request.sampling->mask->Prepare(sequence->generated.ids);
  running_[scheduling.admission] = std::move(owned);
}

void Scheduler::SetWeightVersion(uint64_t version) {
  if (version == sharing_.weight_version()) return;
  for (const auto& [admission, sequence] : running_) sharing_.Expire(sequence.get());
  sharing_.set_weight_version(version);
}

}  // namespace taopd
