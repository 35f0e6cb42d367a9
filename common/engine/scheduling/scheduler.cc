#include "common/engine/scheduling/scheduler.h"

#include <algorithm>

#include "common/base/check.h"

namespace taopd {

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), slots_(limits.num_slots) {}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) {
  Queue& queue = QueueOf(*sequence);
  const RequestHandle handle = sequence->handle;
  TAOPD_CHECK(queue.empty() || queue.back()->handle < handle);
  TAOPD_CHECK(!sequence->generates() || limits_.num_slots > 0);
  queued_tokens_ += sequence->num_prompt_tokens();
  if (sequence->request.deadline != absl::InfiniteFuture())
    deadlines_.insert({sequence->request.deadline, handle});
  queue.push_back(std::move(sequence));
  waiting_[handle] = std::prev(queue.end());
}

bool Scheduler::MayAdmitGeneration() const {
  return !generations_.empty() && num_generating_ < limits_.max_num_seqs && slots_.num_free() > 0;
}

StepPlan Scheduler::Schedule() {
  DropCancelledRunning();
  StepPlan plan;
  for (const auto& sequence : running_) plan.decodes.push_back(sequence.get());

  int64_t num_tokens = static_cast<int64_t>(plan.decodes.size());
  while (true) {
    const bool may_generate = MayAdmitGeneration();
    const bool may_score =
        !scores_.empty() && static_cast<int64_t>(plan.scores.size()) < limits_.max_num_seqs;
    if (!may_generate && !may_score) break;
    const bool take_score =
        may_score && (!may_generate || scores_.front()->handle < generations_.front()->handle);
    Sequence& next = take_score ? *scores_.front() : *generations_.front();

    const bool first = plan.scores.empty() && plan.prefills.empty();
    if (!first && next.scores() && !limits_.batch_scores) break;
    // Rollouts of one prompt come one after the other: the prompt is prefilled once and its keys
    // and values are copied. Not with scores: their rows belong to one sequence.
    next.shares_prompt = !next.scores() && !plan.prefills.empty() &&
                         !plan.prefills.back()->scores() &&
                         plan.prefills.back()->request.token_ids == next.request.token_ids;
    const int64_t cost = next.shares_prompt ? 0 : next.num_prompt_tokens();
    if (!first && num_tokens + cost > limits_.max_num_batched_tokens) break;
    num_tokens += cost;

    (next.generates() ? plan.prefills : plan.scores).push_back(&next);
    if (next.generates()) {
      next.slot = slots_.Acquire();
      ++num_generating_;
    }
    running_.push_back(RemoveWaiting(waiting_.at(next.handle)));
    if (next.scores() && !limits_.batch_scores) break;
  }
  return plan;
}

std::unique_ptr<Sequence> Scheduler::Finish(Sequence* sequence) {
  const auto position =
      std::find_if(running_.begin(), running_.end(),
                   [sequence](const auto& running) { return running.get() == sequence; });
  TAOPD_CHECK(position != running_.end());
  std::unique_ptr<Sequence> owned = std::move(*position);
  running_.erase(position);
  if (owned->generates()) {
    slots_.Release(owned->slot);
    owned->slot = -1;
    --num_generating_;
  }
  return owned;
}

void Scheduler::Cancel(RequestHandle handle) {
  if (const auto found = waiting_.find(handle); found != waiting_.end()) {
    DropWaiting(found->second, absl::CancelledError("cancelled while waiting"));
    return;
  }
  for (const auto& sequence : running_) {
    if (sequence->handle == handle) sequence->cancelled = true;
  }
}

void Scheduler::DropCancelledRunning() {
  std::vector<Sequence*> cancelled;
  for (const auto& sequence : running_) {
    if (sequence->cancelled) cancelled.push_back(sequence.get());
  }
  for (Sequence* sequence : cancelled) {
    dropped_.emplace_back(Finish(sequence), absl::CancelledError("cancelled while running"));
  }
}

void Scheduler::DropExpired(absl::Time now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    DropWaiting(waiting_.at(deadlines_.begin()->second),
                absl::DeadlineExceededError("the deadline passed while the request was waiting"));
  }
}

void Scheduler::DropAll(const absl::Status& status) {
  for (Queue* queue : {&scores_, &generations_}) {
    while (!queue->empty()) DropWaiting(queue->begin(), status);
  }
  while (!running_.empty()) dropped_.emplace_back(Finish(running_.front().get()), status);
}

std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> Scheduler::TakeDropped() {
  return std::exchange(dropped_, {});
}

std::unique_ptr<Sequence> Scheduler::RemoveWaiting(Queue::iterator position) {
  std::unique_ptr<Sequence> sequence = std::move(*position);
  QueueOf(*sequence).erase(position);
  waiting_.erase(sequence->handle);
  deadlines_.erase({sequence->request.deadline, sequence->handle});
  queued_tokens_ -= sequence->num_prompt_tokens();
  return sequence;
}

void Scheduler::DropWaiting(Queue::iterator position, const absl::Status& status) {
  dropped_.emplace_back(RemoveWaiting(position), status);
}

}  // namespace taopd
