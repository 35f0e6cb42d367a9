// Decides what one step computes. Pure state moves over waiting and running sequences, without a
// model, a clock or a lock of its own: the engine calls it under its lock.
//
//   Add -> waiting -> Schedule -> running -> Finish
//             |                      |
//             +---- Cancel, deadline, DropAll ----> TakeDropped
//
// Invariants: a sequence is in exactly one of waiting, running and dropped; a running sequence that
// generates holds one slot of the KV cache, others none; running sequences keep the order in which
// they were admitted. The same Adds give the same plans.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/engine/scheduling/sequence.h"
#include "common/engine/scheduling/slot_pool.h"

namespace taopd {

struct SchedulerLimits {
  int64_t max_num_seqs = 1;  // sequences that generate at once, and scored sequences of a step
  int64_t num_slots = 0;     // of the KV cache; 0 when nothing generates
  int64_t max_num_batched_tokens = 1;  // of a step; one prompt of any length is always admitted, so
                                       // that a long one cannot starve
  // False: a sequence with scores is the only prefill of its step, so that its numbers cannot
  // depend on other sequences, bit for bit.
  bool batch_scores = false;
};

// The sequences of one step; every running sequence is in exactly one list.
struct StepPlan {
  std::vector<Sequence*> scores;    // to score only: prefill without the KV cache
  std::vector<Sequence*> prefills;  // to prefill into the KV cache and sample; some score as well
  std::vector<Sequence*> decodes;   // one token each

  bool empty() const { return scores.empty() && prefills.empty() && decodes.empty(); }
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  void Add(std::unique_ptr<Sequence> sequence);

  // Admits waiting sequences in their order, except that sequences which only score pass those that
  // wait for a slot. All running sequences that were prefilled before are decoded.
  StepPlan Schedule();

  // Takes a running sequence out and frees its slot.
  std::unique_ptr<Sequence> Finish(Sequence* sequence);

  // A waiting sequence leaves at once, a running one before the next step. Unknown handles are
  // ignored.
  void Cancel(RequestHandle handle);
  // Waiting sequences with deadline <= now leave.
  void DropExpired(absl::Time now);
  // Everything leaves with `status`.
  void DropAll(const absl::Status& status);
  // What has left otherwise than by Finish, with the reason, in that order.
  std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> TakeDropped();

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t queued_tokens() const { return queued_tokens_; }
  // Whether there is something for the engine's thread to do.
  bool has_work() const { return !waiting_.empty() || !running_.empty() || !dropped_.empty(); }

 private:
  using Queue = std::list<std::unique_ptr<Sequence>>;

  Queue& QueueOf(const Sequence& sequence) { return sequence.generates() ? generations_ : scores_; }
  std::unique_ptr<Sequence> RemoveWaiting(Queue::iterator position);
  void DropWaiting(Queue::iterator position, const absl::Status& status);
  void DropCancelledRunning();
  bool MayAdmitGeneration() const;

  const SchedulerLimits limits_;
  SlotPool slots_;
  // Two queues, each in the order of handles, which is the order of arrival.
  Queue scores_;
  Queue generations_;
  std::unordered_map<RequestHandle, Queue::iterator> waiting_;
  std::set<std::pair<absl::Time, RequestHandle>> deadlines_;  // of waiting sequences that have one
  int64_t queued_tokens_ = 0;
  std::vector<std::unique_ptr<Sequence>> running_;
  int64_t num_generating_ = 0;
  std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> dropped_;
};

}  // namespace taopd
