// Decides what one step computes. It only moves sequences between states; it knows no model and no
// clock. Not thread-safe: the engine calls it under its lock.
//
//   Add -> waiting -> Schedule -> running -> Finish
//             |                      |
//             +---- Cancel, deadline, DropAll ----> TakeDropped
//
// Invariants:
//   A sequence is in exactly one of the states waiting, running and dropped.
//   A running sequence that generates holds one slot of the KV cache; no other sequence holds one.
//   Running sequences keep the order in which they were admitted.
//   The same calls give the same plans.
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
  // The limit of the sequences that generate at once, and of the scored sequences of one step.
  int64_t max_num_seqs = 1;
  int64_t num_slots = 0;  // of the KV cache; 0 if nothing generates
  // The limit of one step. One prompt of any length is always admitted, so that a long prompt
  // cannot starve.
  int64_t max_num_batched_tokens = 1;
  // If false, a sequence with scores is the only prefill of its step, so that its scores cannot
  // depend on other sequences, bit for bit.
  bool batch_scores = false;
};

// The sequences of one step. Every running sequence is in exactly one list.
struct StepPlan {
  std::vector<Sequence*> scores;    // are only scored, without the KV cache
  std::vector<Sequence*> prefills;  // fill the KV cache and sample one token; some score as well
  std::vector<Sequence*> decodes;   // sample one token each

  bool empty() const { return scores.empty() && prefills.empty() && decodes.empty(); }
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  void Add(std::unique_ptr<Sequence> sequence);

  // Admits waiting sequences in the order of arrival, except that sequences that only score
  // overtake sequences that wait for a slot. All running sequences that were prefilled before are
  // decoded.
  StepPlan Schedule();

  // Removes a running sequence and frees its slot.
  std::unique_ptr<Sequence> Finish(Sequence* sequence);

  // Drops a waiting sequence at once, and a running one before the next step. Unknown handles are
  // ignored.
  void Cancel(RequestHandle handle);
  // Drops the waiting sequences with deadline <= now.
  void DropExpired(absl::Time now);
  // Drops all sequences with `status`.
  void DropAll(const absl::Status& status);
  // Returns the sequences that were dropped since the last call, each with the reason, in the order
  // in which they were dropped.
  std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> TakeDropped();

  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  int64_t queued_tokens() const { return queued_tokens_; }
  // Whether the engine's thread has something to do.
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
  // Of the waiting sequences that have a deadline.
  std::set<std::pair<absl::Time, RequestHandle>> deadlines_;
  int64_t queued_tokens_ = 0;
  std::vector<std::unique_ptr<Sequence>> running_;
  int64_t num_generating_ = 0;
  std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> dropped_;
};

}  // namespace taopd
