// The rollouts that a step asks for. No LibTorch here.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Returns rollout.n requests for each prompt, one prompt after the other. The seed of a request is
// derived from run.seed, the step (0-based), and the positions of the prompt and of the sample, so
// a resumed run draws the same responses.
std::vector<RolloutRequest> MakeRolloutRequests(const TrainConfig& config, int64_t step,
                                                const std::vector<const PromptRecord*>& prompts);

}  // namespace taopd
