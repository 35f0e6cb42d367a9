// Decides what one step computes. It only moves sequences between states and blocks between owners,
// without access to the model or a clock. Not thread-safe: the engine calls it under its lock.
//
//   Add -> waiting -> Schedule -> running -> Finish
//             |   ^                | |
//             |   +-- preemption --+ |
//             +---- Cancel, deadline, DropAll ----> TakeDropped
//
// One turn of the engine's loop:
//   DropExpired; Schedule; TakeDropped
//   the copies and the rows of the plan are computed; sampled tokens are appended
//   Advance, also if the step has failed in part or as a whole
//   Finish for every sequence of the plan that is finished or has failed
//
// Invariants:
//   A sequence is in exactly one of the states waiting, preempted, running and dropped.
//   The rows of a plan are at most max_num_batched_tokens, except that an uncached step may compute
//     one longer sequence alone.
//   At most min(max_num_seqs, max_num_batched_tokens) sequences that use the pool generate at once.
//   Every running sequence that decodes has its row in every plan that is not uncached, unless it
//     waits for its mask (Sequence::WaitsForMask).
//   A block's reference count is the number of running sequences whose tables hold it.
//   A row is only written to a block that nobody else refers to.
//   Every sequence is done after a finite number of steps. The oldest one, which was added first
//     among those that are not done, is never preempted, and is admitted by force when it has
//     waited for kMaxStepsWaited steps.
//   Even in a full engine, the first short request of a new client is computed within three steps.
//   The same calls give the same plans.
//
// Clients take turns (waiting_queue.h), and share slots and blocks (client_shares.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/scheduling/block_pool.h"
#include "common/engine/scheduling/client_shares.h"
#include "common/engine/scheduling/prefix_sharing.h"
#include "common/engine/scheduling/sequence.h"
#include "common/engine/scheduling/waiting_queue.h"

namespace taopd {

struct SchedulerLimits {
  // The limit on the sequences that generate at once. Only max_num_batched_tokens of them run if
  // that is less, so that each can decode in every step.
  int64_t max_num_seqs = 1;
  // Blocks of the KV cache; 0 if nothing generates. They must hold the longest sequence that
  // generates.
  int64_t num_blocks = 0;
  int64_t block_tokens = 32;
  int64_t max_num_batched_tokens = 1;  // rows of one step
  bool prefix_caching = true;
};

// Rows [first, first + count) of one sequence: the model is fed these tokens. With `samples`, the
// last row's logits give the next token of the sequence and of each follower. Followers are
// sequences with the same prompt. Nothing else of them is computed in this step.
struct ScheduledRows {
  Sequence* sequence = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  std::vector<Sequence*> followers;  // empty unless `samples`
  bool samples = false;
};

// Block `to` becomes a copy of block `from`, in all layers.
struct BlockCopy {
  int32_t from = 0;
  int32_t to = 0;
  const Sequence* sequence = nullptr;  // writes to the copy
};

struct StepPlan {
  // Done before the rows are computed, in any order: no block is both copied from and to, nor
  // copied to twice.
  std::vector<BlockCopy> copies;
  std::vector<ScheduledRows> rows;
  // If true, the rows are whole sequences, computed without the pool. They only score, or generate
  // one token.
  bool uncached = false;
  // A sequence that would have rows if its mask were ready. Valid as long as the sequences in
  // `rows`.
  const Sequence* waiting_for_mask = nullptr;

  bool empty() const { return rows.empty(); }
};

struct SchedulerStats {
  uint64_t num_preempted = 0;
  // Prefix cache, counted at each admission: tokens looked up, and tokens found and used.
  uint64_t prefix_query_tokens = 0;
  uint64_t prefix_hit_tokens = 0;
};

class Scheduler {
 public:
  // A sequence waits for at most this many steps after it has become the oldest.
  static constexpr int kMaxStepsWaited = 64;

  // REQUIRES: limits are at least 1, num_blocks at least 0.
  explicit Scheduler(const SchedulerLimits& limits);

  // REQUIRES: handles grow; the pool holds prompt and max_new_tokens of a sequence that generates;
  // a sequence that only scores has at least two tokens.
  void Add(std::unique_ptr<Sequence> sequence);

  // Plans the next step. A pointer to a sequence is valid until Finish is called for the sequence;
  // all pointers of the plan are until Schedule or DropAll.
  StepPlan Schedule();
  // Records that the plan's rows have been computed and sampled tokens have been appended. The last
  // row of a sequence that sampled no token (Sequence::mask_was_late) will be computed again. Call
  // it once, after the step of the last Schedule, even if all of the step has failed.
  // REQUIRES: the status of every sequence that could not be computed is an error. If the step
  // failed as a whole, these are all sequences of the plan, followers included.
  // Failed sequences are skipped. Their followers in the plan are preempted and start again, unless
  // they have failed or ended themselves.
  void Advance(const StepPlan& plan);

  // Removes a running sequence and gives back its blocks.
  std::unique_ptr<Sequence> Finish(Sequence* sequence);

  // Drops a waiting sequence now, and a running one in the next Schedule. Unknown handles are
  // ignored.
  void Cancel(RequestHandle handle);
  // Drops the waiting sequences with deadline <= now, and the running ones in the next Schedule.
  void DropExpired(absl::Time now);
  // Drops all sequences with `status`. REQUIRES: no step is being computed.
  void DropAll(const absl::Status& status);
  // Returns the sequences that were dropped since the last call, each with the reason, in the order
  // in which they were dropped.
  std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> TakeDropped() {
    return std::exchange(dropped_, {});
  }

  // Makes prefixes that were computed with other weights unfindable. Running sequences continue
  // with the keys and values that they have, but do not share them.
  void SetWeightVersion(uint64_t version);
  // Forgets all cached prefixes. If nothing runs, the contents of all blocks are meaningless then.
  void ReleaseCache() { pool_.ReleaseCache(); }

  // Preempted sequences count as waiting ones.
  int64_t num_waiting() const { return waiting_.size() + waiting_.num_preempted(); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  // The sequences that have never been admitted, with the tokens of their prompts: all of them, and
  // those of one client.
  QueueLoad queue() const { return {waiting_.num_tokens(), waiting_.size()}; }
  QueueLoad WaitingOf(const std::string& client) const { return waiting_.WaitingOf(client); }
  const SchedulerStats& stats() const { return stats_; }
  // Returns whether the engine's thread has something to do.
  bool has_work() const { return num_waiting() > 0 || num_running() > 0 || !dropped_.empty(); }
  const BlockPool& pool() const { return pool_; }

 private:
  using State = Sequence::Scheduling::State;
  using PreemptionLimit = ClientShares::PreemptionLimit;

  // A plan in the making.
  struct PlanDraft {
    StepPlan plan;
    int64_t budget = 0;                 // rows that may still be added
    int64_t num_reserved = 0;           // NumReservedBlocks() during admission
    std::vector<int32_t> held_sources;  // blocks that are released when the plan is complete
    bool preempted = false;
    bool full_of_decodes = false;  // decoding sequences use the whole budget
    bool crowded = false;          // decoding sequences use more than half of the budget
  };

  enum class Admission {
    kAdmitted,
    kWaitsForPrefix,
    kNoSlot,
    kNoRoom,  // not enough blocks
    kNoRows,  // nothing is left of the step's budget
  };

  // Functions of scheduler.cc: what a step computes of the running sequences, and how they end.

  void DropEnding();
  // Plans the sequences that run without the pool. They get every second step while there is other
  // work.
  StepPlan ScheduleUncached();
  // Plans sequences that decode, then prompts that were begun, in the order of admission, and then
  // preempted and new sequences. What is left of the budget goes to the prompts that were begun.
  StepPlan SchedulePooled();
  // Gives rows to the prompts that were begun. While several clients have prompts, each client gets
  // at most an equal part of the budget.
  void SchedulePrompts(const std::vector<Sequence*>& prompts, PlanDraft* draft);
  // Adds at most max_rows rows to those that the plan has of the sequence. Returns how many.
  int64_t ScheduleRunning(Sequence* sequence, int64_t max_rows, PlanDraft* draft);
  void AddRows(Sequence* sequence, int64_t count, PlanDraft* draft);
  // Allocates and unshares the blocks of tokens [num_computed, end), preempting others if
  // necessary. Returns false if the sequence itself was preempted.
  bool MakeWritable(Sequence* sequence, int64_t end, PlanDraft* draft);
  // Preempts the sequence of VictimForGrowth. Returns false if that is `requester`.
  bool PreemptFor(Sequence* requester, PlanDraft* draft);
  void Preempt(Sequence* sequence, PlanDraft* draft);
  void RemoveFromPlan(Sequence* sequence, PlanDraft* draft);
  void ReleaseBlocks(Sequence* sequence, PlanDraft* draft);
  // Removes a sequence from the running ones.
  std::unique_ptr<Sequence> RemoveRunning(Sequence* sequence);
  // Forgets a sequence that is done or dropped.
  std::unique_ptr<Sequence> End(std::unique_ptr<Sequence> sequence);
  void DropWaiting(Sequence* sequence, const absl::Status& status) {
    dropped_.emplace_back(End(waiting_.Remove(*sequence)), status);
  }

  // Functions of admission.cc: which waiting sequences a step admits.

  // Admits the oldest sequence by force if it has waited for too long.
  void AdmitOverdue(PlanDraft* draft);
  // Admits waiting sequences in turns while they find room. A later request of a client overtakes
  // an earlier one of the same client only in these cases, all of which are bounded:
  //   It only scores, and the earlier one waits because enough sequences generate.
  //   It follows a leader, and joins as soon as the leader is admitted.
  //   The earlier one waits for its next block, which another one computes. It does so for at most
  //     PrefixSharing::kMaxWaits others.
  //   One of the two runs without the pool (ScheduleUncached).
  void AdmitAll(PlanDraft* draft);
  // Admits the sequence whose turn it is. If `others_wait`, sequences before it have found too few
  // blocks; it then waits behind them unless another client holds as many blocks as its own would.
  Admission AdmitInTurn(Sequence* next, bool others_wait, PlanDraft* draft);
  // Admits a sequence, after others have been preempted for it if that is necessary and allowed.
  Admission Admit(Sequence* sequence, PreemptionLimit limit, PlanDraft* draft);
  Admission TryAdmit(Sequence* sequence, PlanDraft* draft);
  // These move a waiting or preempted sequence to the running ones.
  void StartPrompt(Sequence* sequence, const CachedPrefix& prefix, PlanDraft* draft);
  void StartFollowing(Sequence* sequence, Sequence* leader, PlanDraft* draft);
  void JoinWaitingFollowers(Sequence* leader, PlanDraft* draft);
  void MoveToRunning(Sequence* sequence, int64_t charged_tokens, bool uncached);
  // Preempts others to make room for the sequence, or nobody if that would not suffice. Returns
  // whether there is room.
  bool MakeRoom(Sequence* sequence, PreemptionLimit limit, PlanDraft* draft);
  // Counts the steps that the oldest sequence waits. Returns the sequence if they are too many.
  Sequence* NoteWaitOfOldest();
  // Returns whether a waiting sequence may run without the pool although the pool could hold it. If
  // it finds no room, it then runs in the next step, and takes no slot or block from others. It
  // must be done after its prompt (it only scores, or generates one token without a mask) and fit
  // one step; several clients must have work, and no prompt of its client may be in progress.
  bool MayRunUncached(const Sequence& sequence) const;

  // Returns whether several clients have work.
  bool IsShared() const { return waiting_.num_active_clients() > 1; }
  // Blocks that running sequences will still take until their prompts are computed.
  int64_t NumReservedBlocks() const;
  // Blocks that admission may hand out. It leaves some free, so that running sequences can grow
  // without a preemption.
  int64_t NumSpareBlocks(int64_t num_reserved) const {
    return pool_.num_available() - num_reserved - std::max<int64_t>(1, pool_.num_blocks() / 64);
  }
  // Returns the clients' shares of slots and blocks.
  ClientShares SharesOfClients() const;

  const SchedulerLimits limits_;
  const int64_t num_slots_;  // sequences that may generate at once
  BlockPool pool_;
  PrefixSharing sharing_{&pool_};
  WaitingQueue waiting_;
  std::map<uint64_t, std::unique_ptr<Sequence>> running_;  // in the order of admission
  std::vector<std::pair<std::unique_ptr<Sequence>, absl::Status>> dropped_;
  std::map<RequestHandle, Sequence*> sequences_;  // all but the dropped ones
  std::set<std::pair<absl::Time, RequestHandle>> deadlines_;
  uint64_t next_admission_ = 1;
  int64_t num_generating_ = 0;
  int64_t num_uncached_running_ = 0;
  uint64_t num_plans_ = 0;
  bool last_step_uncached_ = false;
  // Clients whose prompts the last step with the pool computed in part.
  std::set<std::string> prompt_clients_;
  SchedulerStats stats_;
};

}  // namespace taopd
