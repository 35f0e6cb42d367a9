// The start of a step's rollouts on a rank, and the continuation of those that a checkpoint holds.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/step/rollouts/pending_step.h"
#include "trainer/step/scored_batch.h"
#include "trainer/step/step_context.h"

namespace taopd {

// Returns the prompt of each of this rank's sequences of a step with these prompts.
std::vector<const PromptRecord*> PromptsOfSequences(
    const StepContext& context, const std::vector<const PromptRecord*>& prompts);

// Starts this rank's rollouts of step `step` (0-based), which the weights of `policy_version`
// generate (RolloutRequest).
std::shared_ptr<ScoredBatch> StartRollouts(const StepContext& context, int64_t step,
                                           const std::vector<const PromptRecord*>& prompts,
                                           int64_t policy_version = kLiveWeights);

// Continues the rollouts of a checkpoint: asks the teacher for the scores that are missing. Returns
// DATA_LOSS if they are not answers to these prompts.
absl::StatusOr<std::shared_ptr<ScoredBatch>> ContinueRollouts(
    const StepContext& context, const StepInFlight& step,
    const std::vector<const PromptRecord*>& prompts);

}  // namespace taopd
