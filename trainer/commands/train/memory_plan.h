// The memory plan of a distillation run, from its configuration and the student's config.json. No
// weights are read.
#pragma once

#include <string>

#include "common/memory/training_plan.h"
#include "trainer/config/train_config.h"

namespace taopd {

// What this process may take of the device that trainer.device names.
absl::StatusOr<MemoryBudget> BudgetOf(const TrainConfig& config);

// Plans the run of `config` with the student in `model_dir` (student.model, or the checkpoint that a
// run continues from). Errors are those of LoadModelConfig and PlanTraining.
absl::StatusOr<EnginePlan> PlanRun(const TrainConfig& config, const std::string& model_dir,
                                   const MemoryBudget& budget, EnginePlan* refused = nullptr);

}  // namespace taopd
