// One request inside the engine, with the place of its keys and values and its output so far. The
// scheduler owns all sequences. While a sequence runs, only the engine's thread writes it, unless a
// member's comment says otherwise.
//
// Tokens are numbered from 0: the prompt's P tokens and then the generated ones. Row i is what the
// model computes from token i: its keys and values, and the logits that predict token i + 1.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/engine/engine_request.h"
#include "common/engine/sampling/sampler.h"

namespace taopd {

struct Sequence {
  Sequence(RequestHandle handle, InferenceRequest request, InferenceDone done,
           const std::vector<int32_t>& eos_token_ids);

  int64_t num_prompt_tokens() const { return static_cast<int64_t>(request.token_ids.size()); }
  int64_t num_tokens() const {
    return num_prompt_tokens() + static_cast<int64_t>(generated.ids.size());
  }
  int32_t token(int64_t i) const {
    return i < num_prompt_tokens() ? request.token_ids[i] : generated.ids[i - num_prompt_tokens()];
  }
  bool scores() const { return request.score.has_value(); }
  bool generates() const { return request.sampling.has_value(); }
  // Returns the number of rows to be computed now. A sequence without sampling does not need the
  // row of its last token.
  int64_t num_rows_needed() const { return generates() ? num_tokens() : num_prompt_tokens() - 1; }

  // Returns whether the sequence's next row must wait for its mask, which gets up to `patience` to
  // become ready first.
  bool WaitsForMask(absl::Duration patience = absl::ZeroDuration()) const {
    return num_mask_waits > 0 && num_computed == num_tokens() - 1 &&
           !request.sampling->mask->IsReady(generated.ids, patience);
  }

  // Appends one sampled token: calls should_stop and on_token, and finishes the sequence at a stop
  // id, where should_stop says so, or at max_new_tokens. REQUIRES: generates() && !finished.
  void Append(const SampledToken& token);

  // If true, nothing is left to compute, because the sequence is complete or has failed. Set by
  // Append or, for a sequence that only scores, by Scheduler::Advance.
  bool finished = false;
  // Not OK if this sequence failed, e.g. because its logits are not finite.
  absl::Status status;

  const RequestHandle handle;
  InferenceRequest request;
  InferenceDone done;

  // The blocks of the keys and values. Token i has its own in blocks[i / block_tokens], at offset i
  // % block_tokens. Written by the scheduler; covers the rows of the current step. Empty while the
  // sequence waits, and always if it is computed without the pool.
  std::vector<int32_t> blocks;
  // The number of tokens whose keys and values exist. Written by the scheduler.
  int64_t num_computed = 0;
  // If the sequence scores: rows i with next_scored_row <= i < P - 1 are still to be scored. A
  // sequence that is computed again after a preemption is not scored again. Written by the
  // scheduler.
  int64_t next_scored_row = 0;
  // After a late mask, the number of further tokens whose rows are computed only once their masks
  // are there. Written by the ModelRunner.
  int num_mask_waits = 0;
  // In the current step: its row was computed, but no token was sampled. The ModelRunner writes it.
  bool mask_was_late = false;

  absl::Time started_at = absl::InfinitePast();  // see InferenceResult; written by the engine
  std::optional<ScoreRows> score;
  GeneratedTokens generated;
  // The Sampler's state after the tokens so far; null unless generates().
  std::unique_ptr<SamplingState> sampling_state;

  // The scheduler's own state; nobody else reads or writes it.
  struct Scheduling {
    enum class State { kWaiting, kPreempted, kRunning };
    State state = State::kWaiting;
    bool uncached = false;             // runs without the pool
    bool passed_over = false;          // found no room when its turn came
    int num_steps_without_rows = 0;    // steps in which nothing was left of the budget for it
    int num_steps_waited = 0;          // as the oldest, since it ran last
    absl::Status ends_with;            // if not OK, the next Schedule drops it with this
    int64_t num_planned = 0;           // rows in the plan that is being made
    uint64_t preempted_in = 0;         // the plan in which it lost its blocks last
    uint64_t admission = 0;            // the order of admissions; 0 = never admitted
    uint64_t prompt_hash = 0;          // of client, salt and prompt
    Sequence* leader = nullptr;        // computes this follower's prompt, until that is done
    std::vector<Sequence*> followers;  // of a leader, in the order of admission
    // Others can find the blocks [0, num_blocks); `entry` is that of the last one.
    struct Published {
      int64_t num_blocks = 0;
      uint64_t entry = 0;
      bool stale = false;  // the weights have changed since the sequence was admitted
    } published;
    bool announced = false;  // others may wait for block published.num_blocks
    // The sequence whose block this one waited for last, and how often that changed.
    RequestHandle waited_for = 0;
    int num_waits = 0;
  } scheduling;
};

// Returns whether both sequences only generate and have the same client, salt and prompt.
bool SharesPrompt(const Sequence& a, const Sequence& b);

}  // namespace taopd
