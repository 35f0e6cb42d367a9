// The rest of a step that ended between two mini-batches, and its files in a checkpoint:
//
//   pending/rank-00000.safetensors   rank 0's part; any number of ranks reads all files
//     sums, counts                   the step so far, over all ranks; only in rank 0's file
//     sequence-000012.response_ids   ... one rollout, by its number in the step
//
// Rollouts of finished mini-batches keep their ids and log-probs, which the step's metrics, its
// dump and the probe of policy/kl_to_start need; the others also keep the teacher's scores. All
// numbers are stored bit for bit.
//
// Steps that have not begun but whose rollouts exist (trainer.async_steps) have files of the same
// form, without the sums, and without the scores that have not arrived:
//
//   in_flight/step-000013/rank-00000.safetensors
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/dist/shares.h"
#include "trainer/step/scored_rollout.h"
#include "trainer/step/step_metrics.h"

namespace taopd {

// Folders in a checkpoint.
inline constexpr char kPendingDir[] = "pending";
inline constexpr char kInFlightDir[] = "in_flight";

struct PendingStep {
  int64_t mini_batch = 0;     // the next one: the number of those that are done
  int64_t num_sequences = 0;  // sequences of the whole step, on all ranks
  int64_t num_mini_batches = 0;
  // The sums over the finished mini-batches. lr and rollouts are not kept, because they follow from
  // the configuration and the rollouts. duration is the time so far.
  StepRecord record;
  absl::Duration longest_mini_batch;
  // This rank's rollouts, by their numbers in the step.
  std::map<int64_t, std::shared_ptr<const ScoredRollout>> rollouts;
};

// Creates `dir` and writes the part of rank `rank` into it.
absl::Status WritePendingStep(const PendingStep& step, int64_t rank, const std::string& dir);

// Reads the part of a rank with these shares, whichever ranks have written it. Only the rank with
// `is_root` gets the sums that are added over the ranks at the end of the step. `changed` are the
// settings and facts (trainer/run/resume/run_facts.h) that have other values than when the files
// were written. Returns DATA_LOSS if the files are damaged or do not belong to a step of this
// configuration: its batch, its mini-batches, the form of its scores (teacher.top_k, objective),
// its teacher, and the settings on which the values of scores and rewards depend
// (Setting::decides_scores) must be the same.
absl::StatusOr<PendingStep> ReadPendingStep(const std::string& dir, const TrainConfig& config,
                                            const Shares& shares, bool is_root,
                                            const std::vector<std::string>& changed = {});

// This rank's rollouts of a step that has not begun.
struct StepInFlight {
  int64_t step = 0;  // 0-based
  // The rollouts by their numbers in the step, and the numbers of those that have their scores.
  std::map<int64_t, std::shared_ptr<const ScoredRollout>> rollouts;
  std::set<int64_t> scored;
  // The version of the weights that generated them.
  int64_t policy_version() const {
    return rollouts.empty() ? kLiveWeights : rollouts.begin()->second->rollout.policy_version;
  }
};

// Creates `dir` and writes the part of rank `rank` of each step into it. Scores that are not in
// `scored` are not read, because the teacher's answers may be arriving.
absl::Status WriteStepsInFlight(const std::vector<StepInFlight>& steps, int64_t rank,
                                const std::string& dir);

// Reads the parts of a rank with these shares, in the order of the steps, whichever ranks have
// written them. Scores and rewards that ReadPendingStep would refuse are dropped with a warning, so
// that they are asked for again. All rollouts are dropped with a warning, on every rank, if a
// setting or fact has changed that decides which rollouts a step has: the data and its order, their
// number or their longest length. Returns DATA_LOSS if a rollout is missing or damaged.
absl::StatusOr<std::vector<StepInFlight>> ReadStepsInFlight(
    const std::string& dir, const TrainConfig& config, const Shares& shares,
    const std::vector<std::string>& changed = {});

}  // namespace taopd
