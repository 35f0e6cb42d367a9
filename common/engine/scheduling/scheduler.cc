#include "common/engine/scheduling/scheduler.h"

#include <absl/hash/hash.h>

#include "common/base/check.h"

namespace taopd {

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      num_slots_(std::min(limits.max_num_seqs, limits.max_num_batched_tokens)),
      pool_(limits.num_blocks, limits.block_tokens, limits.prefix_caching) {
  TAOPD_CHECK_GE(limits.max_num_seqs, 1);
  TAOPD_CHECK_GE(limits.max_num_batched_tokens, 1);
}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) {
  TAOPD_CHECK(sequence->generates() || sequence->num_prompt_tokens() >= 2);
  // The last token that a sequence generates is never fed to the model.
  const int64_t num_rows =
      sequence->generates()
          ? sequence->num_prompt_tokens() + sequence->request.sampling->max_new_tokens - 1
          : sequence->num_rows_needed();
  const bool fits = pool_.NumBlocksFor(num_rows) <= pool_.num_blocks();
  TAOPD_CHECK(fits || !sequence->generates());
  Sequence::Scheduling& scheduling = sequence->scheduling;
  scheduling.uncached = !fits;
  const InferenceRequest& request = sequence->request;
  scheduling.prompt_hash = absl::HashOf(request.client, request.cache_salt, request.token_ids);
  sequences_[sequence->handle] = sequence.get();
  if (request.deadline != absl::InfiniteFuture())
    deadlines_.insert({request.deadline, sequence->handle});
  waiting_.Add(std::move(sequence));
}

StepPlan Scheduler::Schedule() {
  ++num_plans_;
  DropEnding();
  const auto passed_over = [this](const Sequence& sequence) {
    return sequence.scheduling.passed_over && MayRunUncached(sequence);
  };
  const bool uncached_work =
      num_uncached_running_ > 0 || waiting_.NextUncached(passed_over) != nullptr;
  const bool pooled_work = num_running() > num_uncached_running_ || waiting_.num_preempted() > 0 ||
                           waiting_.size() > waiting_.num_uncached();
  last_step_uncached_ = uncached_work && (!pooled_work || !last_step_uncached_);
  return last_step_uncached_ ? ScheduleUncached() : SchedulePooled();
}

StepPlan Scheduler::ScheduleUncached() {
  PlanDraft draft;
  draft.plan.uncached = true;
  draft.budget = limits_.max_num_batched_tokens;
  int64_t num_slots = num_slots_;
  const auto add = [&](Sequence* sequence) {
    AddRows(sequence, sequence->num_rows_needed(), &draft);
    draft.plan.rows.back().samples = sequence->generates();
    num_slots -= sequence->generates();
  };
  for (const auto& [admission, sequence] : running_) {
    sequence->scheduling.num_planned = 0;
    if (sequence->scheduling.uncached && !sequence->finished && sequence->status.ok())
      add(sequence.get());
  }
  // Sequences that the pool could hold take turns: each client has one of them before any has two.
  std::set<std::string> had_turn;
  const auto fits = [&](const Sequence& sequence) {
    return draft.plan.rows.empty() || sequence.num_rows_needed() <= draft.budget;
  };
  const auto accepts = [&](const Sequence& sequence) {
    return MayRunUncached(sequence) && (!sequence.generates() || num_slots > 0) && fits(sequence) &&
           !had_turn.contains(sequence.request.client);
  };
  const auto next_in_turn = [&] {
    Sequence* const next = waiting_.NextUncached(accepts);
    if (next != nullptr || had_turn.empty()) return next;
    had_turn.clear();
    return waiting_.NextUncached(accepts);
  };
  Sequence* const overdue = NoteWaitOfOldest();
  const bool starts_overdue = overdue != nullptr && overdue->scheduling.uncached;
  for (Sequence* next = starts_overdue ? overdue : next_in_turn(); next != nullptr && fits(*next);
       next = next_in_turn()) {
    if (!next->scheduling.uncached) had_turn.insert(next->request.client);
    MoveToRunning(next, next->num_rows_needed(), /*uncached=*/true);
    add(next);
  }
  return std::move(draft.plan);
}

StepPlan Scheduler::SchedulePooled() {
  PlanDraft draft;
  draft.budget = limits_.max_num_batched_tokens;
  std::vector<Sequence*> decodes;
  std::vector<Sequence*> prompts;
  for (const auto& [admission, sequence] : running_) {
    sequence->scheduling.num_planned = 0;
    if (sequence->scheduling.uncached || sequence->scheduling.leader != nullptr ||
        sequence->finished || !sequence->status.ok())
      continue;
    if (sequence->WaitsForMask()) {
      draft.plan.waiting_for_mask = sequence.get();
      continue;
    }
    const bool decodes_next = sequence->generates() && !sequence->generated.ids.empty() &&
                              sequence->num_computed == sequence->num_tokens() - 1;
    (decodes_next ? decodes : prompts).push_back(sequence.get());
  }
  for (Sequence* sequence : decodes) ScheduleRunning(sequence, 1, &draft);
  draft.full_of_decodes = draft.budget == 0;
  draft.crowded = draft.budget < limits_.max_num_batched_tokens / 2;
  AdmitOverdue(&draft);
  SchedulePrompts(prompts, &draft);
  AdmitAll(&draft);
  // Prompts also get the rest of the budget.
  for (Sequence* sequence : prompts) ScheduleRunning(sequence, draft.budget, &draft);
  prompt_clients_.clear();
  for (ScheduledRows& rows : draft.plan.rows) {
    const Sequence& sequence = *rows.sequence;
    rows.samples = sequence.generates() && rows.first + rows.count == sequence.num_tokens();
    if (rows.samples) rows.followers = sequence.scheduling.followers;
    if (rows.first + rows.count < sequence.num_rows_needed())
      prompt_clients_.insert(sequence.request.client);
  }
  for (int32_t block : draft.held_sources) pool_.Release(block);
  return std::move(draft.plan);
}

void Scheduler::SchedulePrompts(const std::vector<Sequence*>& prompts, PlanDraft* draft) {
  std::map<std::string_view, int64_t> parts;  // of the budget
  for (const Sequence* sequence : prompts) parts[sequence->request.client] = 0;
  int64_t num_waiting_clients = static_cast<int64_t>(waiting_.num_waiting_clients());
  for (const auto& [client, part] : parts) num_waiting_clients -= waiting_.Has(std::string(client));
  const int64_t num_parts = static_cast<int64_t>(parts.size()) + (num_waiting_clients > 0);
  for (auto& [client, part] : parts)
    part = num_parts == 1 ? draft->budget : std::max<int64_t>(1, draft->budget / num_parts);
  for (Sequence* sequence : prompts) {
    int64_t& part = parts[sequence->request.client];
    part -= ScheduleRunning(sequence, part, draft);
  }
}

int64_t Scheduler::ScheduleRunning(Sequence* sequence, int64_t max_rows, PlanDraft* draft) {
  if (sequence->scheduling.state != State::kRunning) return 0;  // preempted in this step
  const int64_t begin = sequence->num_computed + sequence->scheduling.num_planned;
  const int64_t count = std::min({sequence->num_rows_needed() - begin, max_rows, draft->budget});
  if (count <= 0 || !MakeWritable(sequence, begin + count, draft)) return 0;
  AddRows(sequence, count, draft);
  return count;
}

void Scheduler::AddRows(Sequence* sequence, int64_t count, PlanDraft* draft) {
  std::vector<ScheduledRows>& rows = draft->plan.rows;
  if (sequence->scheduling.num_planned == 0) {
    rows.push_back({sequence, sequence->num_computed, 0, {}, false});
  }
  const auto planned = std::find_if(rows.rbegin(), rows.rend(),
                                    [&](const auto& item) { return item.sequence == sequence; });
  planned->count += count;
  sequence->scheduling.num_planned += count;
  draft->budget -= count;
}

bool Scheduler::MakeWritable(Sequence* sequence, int64_t end, PlanDraft* draft) {
  const int64_t first_block = sequence->num_computed / pool_.block_tokens();
  if (first_block < static_cast<int64_t>(sequence->blocks.size())) {
    int32_t& block = sequence->blocks[first_block];
    while (pool_.num_references(block) > 1 && pool_.num_available() == 0) {
      if (!PreemptFor(sequence, draft)) return false;
    }
    if (pool_.num_references(block) > 1) {
      const int32_t copy = pool_.Allocate();
      draft->plan.copies.push_back({block, copy, sequence});
      pool_.Release(block);
      block = copy;
    }
  }
  while (static_cast<int64_t>(sequence->blocks.size()) < pool_.NumBlocksFor(end)) {
    if (pool_.num_available() > 0) {
      sequence->blocks.push_back(pool_.Allocate());
    } else if (!PreemptFor(sequence, draft)) {
      return false;
    }
  }
  return true;
}

bool Scheduler::PreemptFor(Sequence* requester, PlanDraft* draft) {
  Sequence* const victim = SharesOfClients().VictimForGrowth(requester);
  Preempt(victim, draft);
  return victim != requester;
}

void Scheduler::Preempt(Sequence* sequence, PlanDraft* draft) {
  for (Sequence* follower : std::exchange(sequence->scheduling.followers, {})) {
    follower->scheduling.leader = nullptr;
    Preempt(follower, draft);
  }
  std::unique_ptr<Sequence> owned = RemoveRunning(sequence);
  if (draft != nullptr) {
    RemoveFromPlan(sequence, draft);
    draft->preempted = true;
    sequence->scheduling.preempted_in = num_plans_;
  }
  ReleaseBlocks(sequence, draft);
  sequence->num_computed = 0;
  sequence->scheduling.published = {};
  sequence->scheduling.state = State::kPreempted;
  waiting_.Return(std::move(owned));
  ++stats_.num_preempted;
}

void Scheduler::RemoveFromPlan(Sequence* sequence, PlanDraft* draft) {
  std::vector<ScheduledRows>& rows = draft->plan.rows;
  std::vector<BlockCopy>& copies = draft->plan.copies;
  const auto is_own = [&](const auto& item) { return item.sequence == sequence; };
  const auto planned = std::find_if(rows.begin(), rows.end(), is_own);
  if (planned != rows.end()) {
    draft->budget += planned->count;
    rows.erase(planned);
  }
  const auto copy = std::find_if(copies.begin(), copies.end(), is_own);
  if (copy == copies.end()) return;
  const int32_t source = copy->from;
  copies.erase(copy);
  const bool still_read = std::any_of(copies.begin(), copies.end(),
                                      [&](const BlockCopy& other) { return other.from == source; });
  const auto held = std::find(draft->held_sources.begin(), draft->held_sources.end(), source);
  if (!still_read && held != draft->held_sources.end()) {
    draft->held_sources.erase(held);
    pool_.Release(source);
  }
}

void Scheduler::ReleaseBlocks(Sequence* sequence, PlanDraft* draft) {
  // The last block is released first. Blocks are evicted in the order of their release, and a block
  // can be found only through the blocks before it.
  for (auto block = sequence->blocks.rbegin(); block != sequence->blocks.rend(); ++block) {
    const bool copied = draft != nullptr && pool_.num_references(*block) == 1 &&
                        std::any_of(draft->plan.copies.begin(), draft->plan.copies.end(),
                                    [&](const BlockCopy& copy) { return copy.from == *block; });
    if (copied) {
      draft->held_sources.push_back(*block);  // must not be written before it has been copied
    } else {
      pool_.Release(*block);
    }
  }
  sequence->blocks.clear();
}

void Scheduler::Advance(const StepPlan& plan) {
  for (const ScheduledRows& rows : plan.rows) {
    Sequence* const sequence = rows.sequence;
    if (!sequence->status.ok()) {
      // The prompt's rows cannot be trusted, so followers that did not fail start again.
      if (!rows.samples) continue;
      for (Sequence* follower : std::exchange(sequence->scheduling.followers, {})) {
        follower->scheduling.leader = nullptr;
        const bool ends = follower->finished || !follower->scheduling.ends_with.ok();
        if (follower->status.ok() && !ends) Preempt(follower, nullptr);
      }
      continue;
    }
    sequence->num_computed = rows.first + rows.count;
    if (sequence->generates() && sequence->num_computed == sequence->num_tokens())
      --sequence->num_computed;  // its mask was late
    if (sequence->scores()) {
      const int64_t end = std::min(sequence->num_computed, sequence->num_prompt_tokens() - 1);
      sequence->next_scored_row = std::max(sequence->next_scored_row, end);
    }
    if (!sequence->generates() && sequence->num_computed == sequence->num_rows_needed())
      sequence->finished = true;
    if (plan.uncached) continue;
    sharing_.Publish(sequence);
    if (!rows.samples) continue;
    waiting_.Charge(sequence->request.client, 1 + static_cast<int64_t>(rows.followers.size()));
    sharing_.Fork(sequence);
  }
}

std::unique_ptr<Sequence> Scheduler::RemoveRunning(Sequence* sequence) {
  const auto position = running_.find(sequence->scheduling.admission);
  TAOPD_CHECK(position != running_.end() && position->second.get() == sequence);
  std::unique_ptr<Sequence> owned = std::move(position->second);
  running_.erase(position);
  sharing_.Leave(sequence);
  num_generating_ -= !owned->scheduling.uncached && owned->generates();
  num_uncached_running_ -= owned->scheduling.uncached;
  return owned;
}

std::unique_ptr<Sequence> Scheduler::Finish(Sequence* sequence) {
  std::unique_ptr<Sequence> owned = RemoveRunning(sequence);
  ReleaseBlocks(sequence, nullptr);
  return End(std::move(owned));
}

std::unique_ptr<Sequence> Scheduler::End(std::unique_ptr<Sequence> sequence) {
  sequences_.erase(sequence->handle);
  deadlines_.erase({sequence->request.deadline, sequence->handle});
  waiting_.End(sequence->request.client);
  return sequence;
}

void Scheduler::Cancel(RequestHandle handle) {
  const auto found = sequences_.find(handle);
  if (found == sequences_.end()) return;
  Sequence* const sequence = found->second;
  if (sequence->scheduling.state == State::kRunning) {
    sequence->scheduling.ends_with = absl::CancelledError("cancelled while running");
  } else {
    DropWaiting(sequence, absl::CancelledError("cancelled while waiting"));
  }
}

void Scheduler::DropExpired(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Sequence* const sequence = sequences_.at(deadlines_.begin()->second);
    deadlines_.erase(deadlines_.begin());
    if (sequence->scheduling.state == State::kRunning) {
      sequence->scheduling.ends_with.Update(
          absl::DeadlineExceededError("the deadline passed while the request was running"));
    } else {
      DropWaiting(sequence,
                  absl::DeadlineExceededError("the deadline passed while the request was waiting"));
    }
  }
}

void Scheduler::DropEnding() {
  std::vector<Sequence*> ending;
  for (const auto& [admission, sequence] : running_) {
    if (!sequence->scheduling.ends_with.ok()) ending.push_back(sequence.get());
  }
  for (Sequence* sequence : ending) {
    const absl::Status reason = sequence->scheduling.ends_with;
    dropped_.emplace_back(Finish(sequence), reason);
  }
}

void Scheduler::DropAll(const absl::Status& status) {
  for (Sequence* sequence : waiting_.All()) DropWaiting(sequence, status);
  while (!running_.empty()) dropped_.emplace_back(Finish(running_.begin()->second.get()), status);
}

}  // namespace taopd
