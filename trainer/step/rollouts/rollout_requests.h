// The rollouts of a step. It does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/dist/shares.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Returns the numbers of those rollouts of a step that a rank with these shares generates: its part
// of each mini-batch.
std::vector<int64_t> SequencesOfStep(const TrainConfig& config, const Shares& shares);

// Returns the sampling parameters that all rollouts of a run share. Each has a seed of its own.
SamplingParams RolloutSampling(const TrainConfig& config);

// Returns rollout.n requests for each prompt, one prompt after the other. The seed of a request is
// derived from run.seed, the step (0-based), and the positions of the prompt and of the sample, so
// a resumed run draws the same responses.
std::vector<RolloutRequest> MakeRolloutRequests(const TrainConfig& config, int64_t step,
                                                const std::vector<const PromptRecord*>& prompts);

// Returns which of the step's prompts use their rows' own responses for training
// (data.offpolicy_fraction). Every set of the same size is equally likely.
std::vector<bool> OffPolicyPrompts(const TrainConfig& config, int64_t step);

}  // namespace taopd
