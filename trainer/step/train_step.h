// One training step, from prompts to updated weights: roll out, score, loss and gradients, update.
//
// Owns nothing. Not thread-safe. On the CPU a step is a pure function of the weights, the
// optimizer's state, the prompts and the step's number, bit for bit, whatever the order in which
// rollouts and scores arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/metrics/sink.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/step/rollouts/pending_step.h"
#include "trainer/step/step_context.h"

namespace taopd {

struct StepResult {
  Metrics metrics;  // under the names of metrics.jsonl
  // Mini-batches whose loss or gradient was not finite. They changed nothing, and the means of the
  // metrics leave them out.
  int64_t num_skipped_updates = 0;
  // This rank's rollouts, for accuracy and samples, and the prompt of each. Given responses
  // (data.offpolicy_fraction) are not among them.
  std::vector<Rollout> rollouts;
  std::vector<const PromptRecord*> prompts;
  double model_flops = 0;  // of this rank's responses, also of given ones (timing/model_flops.h)
  // If not null, the step has ended between two mini-batches because the run should stop, and this
  // is the rest of it. No other member is set then.
  std::shared_ptr<const PendingStep> pending;
};

// Trains on `prompts`, those of all ranks, as step `step_number` (0-based) with the learning rate
// `lr`. All ranks must call it with the same arguments and return the same error, if any. Returns
// the error of a failed rollout or score, or of context.on_wait; the weights are unchanged in that
// case, unless the group itself has failed. When TrainOneStep returns or throws, none of the
// step's rollouts is being generated any more; after a failure, requests to the teacher may still
// be open.
//
// `pending`, if not null, is the rest of this same step. The step continues with its next
// mini-batch, and ends with the weights and metrics (except times) of an uninterrupted step.
// Returns DATA_LOSS if its rollouts belong to other prompts.
//
// Throws LibTorch's exceptions and std::bad_alloc. If the optimizer has counted an update by then,
// the weights are between two steps and must not be saved.
absl::StatusOr<StepResult> TrainOneStep(const StepContext& context, int64_t step_number, double lr,
                                        const std::vector<const PromptRecord*>& prompts,
                                        const PendingStep* pending = nullptr);

}  // namespace taopd
