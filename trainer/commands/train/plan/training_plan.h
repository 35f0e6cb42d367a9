// Plans the memory of a distillation run and chooses the settings that are `auto`.
#pragma once

#include "trainer/commands/train/training_parts.h"

namespace taopd {

// Fills memory_plan, plan_gb, copy_limit_bytes and the settings that are `auto`. Fails with
// kExitOutOfMemory if the run does not fit and trainer.memory_plan is refuse.
absl::Status PlanMemory(TrainingParts& parts);
// Gives all ranks the smallest choice of any, because ranks may have found different amounts of
// free memory. All ranks must call it.
absl::Status AgreeOnPlan(TrainingParts& parts);

}  // namespace taopd
