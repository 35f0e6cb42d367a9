// What is left of a step that ended between two mini-batches, and how a checkpoint holds it:
//
//   pending/rank-00000.safetensors   what rank 0 has; any number of ranks reads all files
//     sums, counts                   the step so far, of all ranks; in rank 0's file alone
//     sequence-000012.response_ids   ... one rollout, by its number in the step
//
// Rollouts of mini-batches that are done keep their ids, which the step's metrics need; the others
// also keep their log-probs and the teacher's scores. All numbers are stored bit for bit.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/dist/shares.h"
#include "trainer/step/scored_rollout.h"
#include "trainer/step/step_metrics.h"

namespace taopd {

inline constexpr char kPendingDir[] = "pending";  // in a checkpoint

struct PendingStep {
  int64_t mini_batch = 0;     // the next one: the number of those that are done
  int64_t num_sequences = 0;  // of the whole step, on all ranks
  int64_t num_mini_batches = 0;
  // The sums over the mini-batches that are done. lr, rollouts and num_beyond_vocabulary, which
  // follow from the configuration and the rollouts, are not kept. duration is the time so far.
  StepRecord record;
  absl::Duration longest_mini_batch;
  // This rank's, by their numbers in the step.
  std::map<int64_t, std::shared_ptr<const ScoredRollout>> rollouts;
};

// Writes what rank `rank` has into `dir`, which it creates.
absl::Status WritePendingStep(const PendingStep& step, int64_t rank, const std::string& dir);

// Reads back what a rank with these shares has of the step, whichever ranks have written it. Of the
// sums, `is_root` tells who gets those that are added up over the ranks at the end of the step.
// Returns DATA_LOSS if the files do not belong to a step of this configuration.
absl::StatusOr<PendingStep> ReadPendingStep(const std::string& dir, const TrainConfig& config,
                                            const Shares& shares, bool is_root);

}  // namespace taopd
