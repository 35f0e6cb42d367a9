// The rewards of a distillation run, from its configuration.
#pragma once

#include <memory>
#include <vector>

#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/reward/step_rewards.h"
#include "trainer/student/student.h"

namespace taopd {

// Makes whatever judges the responses; null if there are no rewards. Does not connect. Returns
// INVALID_ARGUMENT for a grader, a URL or a key that cannot be used.
absl::StatusOr<std::unique_ptr<RewardSource>> MakeRewardSource(const RewardConfig& config);

// Waits for the source, which may be null, to answer. Returns INVALID_ARGUMENT if the student has
// no tokenizer for the texts, or no prompt has an answer that a grader could compare with, and the
// errors of the source otherwise.
absl::Status ConnectRewards(const RewardConfig& config, const Student& student,
                            const std::vector<PromptRecord>& prompts, RewardSource* source);

// `student` and `source` must outlive the result.
StepRewardOptions MakeStepRewardOptions(const RewardConfig& config, const Student& student,
                                        RewardSource* source);

}  // namespace taopd
