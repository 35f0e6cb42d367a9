// The memory plan of a distillation run, from its configuration and the student's config.json. No
// weights are read.
#pragma once

#include <string>

#include "common/memory/step_estimate.h"
#include "common/memory/training_plan.h"
#include "trainer/checkpoint/disk_plan.h"
#include "trainer/config/train_config.h"

namespace taopd {

// What this process may take of the device that trainer.device names: of a CPU's memory
// trainer.cpu_memory_limit, or its part where `num_local_ranks` processes share what is available.
// A limit of the process's own (ulimit) counts for each.
absl::StatusOr<MemoryBudget> BudgetOf(const TrainConfig& config, int64_t num_local_ranks = 1);

struct RunPlanOptions {
  // The processes, each with a device of its own, that train together: prompts and the optimizer's
  // state are dealt among them. The plan is that of one.
  int64_t num_ranks = 1;
  EnginePlan* refused = nullptr;  // as PlanEngine's
};

// Plans the run of `config` with the student in `model_dir` (student.model, or the checkpoint that
// a run continues from), and replaces what is auto in it by what the plan chooses:
//   dist.gradients              of several ranks: whole, or else sharded, if nothing below it fits
//   trainer.recompute           the first of none, attention and full with which the run fits
//   trainer.micro_batch_tokens  of 16384 and its halves, the largest with which it fits without
//   more
//                               recomputation; at least as much as the longest sequence has
//   rollout.kv_cache_gb         what is left, but not more than all sequences at once can fill.
//   While
//                               the others are chosen, the pool is a fifth of the device's limit,
//                               or a twentieth, or one sequence, where no choice fits otherwise
// The choice depends on the configuration and on the budget alone. Errors are those of
// LoadModelConfig and PlanTraining, for the choice that takes least; nothing is replaced then.
absl::StatusOr<EnginePlan> ResolveAuto(TrainConfig* config, const std::string& model_dir,
                                       const MemoryBudget& budget,
                                       const RunPlanOptions& options = {});

// Checkpoints that a run keeps beside the newest: the best one, and the one that a roll-back would
// go to.
int64_t MaxPinnedCheckpoints(const TrainConfig& config);

// The checkpoints and the model of a new run of `config` (disk_plan.h). Errors are those of
// LoadModelConfig.
absl::StatusOr<DiskPlan> DiskPlanOf(const TrainConfig& config, const std::string& model_dir);

// The work of a step of a configuration in which nothing is auto, for EstimateStep.
absl::StatusOr<StepWork> StepWorkOf(const TrainConfig& config, const std::string& model_dir,
                                    int64_t num_ranks);

}  // namespace taopd
