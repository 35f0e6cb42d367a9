// Makes the memory plan of a distillation run from its configuration and the student's config.json.
// No weights are read.
#pragma once

#include <string>
#include <vector>

#include "common/memory/memory_line.h"
#include "common/memory/step_estimate.h"
#include "common/memory/training_plan.h"
#include "common/model/config/dtype.h"
#include "common/model/config/model_config.h"
#include "trainer/checkpoint/disk_plan.h"
#include "trainer/config/train_config.h"

namespace taopd {

// The results of the memory plan that a run keeps.
struct PlannedMemory {
  std::string table;             // the plan as text, for the message of a failure
  double gb = 0;                 // of the device, in GiB; 0 without a plan
  int64_t copy_limit_bytes = 0;  // the limit of a checkpoint's copy; 0: saves do not copy
};

// Returns the memory that this process may use of trainer.device. On a CPU this is
// trainer.cpu_memory_limit, or an equal part of the available memory for each of `num_local_ranks`
// processes. A limit of the process itself (ulimit) applies as well.
absl::StatusOr<MemoryBudget> BudgetOf(const TrainConfig& config, int64_t num_local_ranks = 1);

struct RunPlanOptions {
  // The number of processes, each with a device of its own, that train together and share prompts
  // and the optimizer's state. The plan is that of one process.
  int64_t num_ranks = 1;
  EnginePlan* refused = nullptr;  // see PlanEngine
};

// Plans the run of `config` with the student in `model_dir` (student.model, or the checkpoint from
// which a run continues). The plan chooses the settings that are auto and replaces them:
//   dist.gradients              for several ranks: whole, or sharded if nothing else fits
//   trainer.recompute           the first of none, attention and full with which the run fits
//   trainer.micro_batch_tokens  the largest of 16384 and its halves that fits without more
//                               recomputation; at least as much as the longest sequence has
//   rollout.kv_cache_gb         the remaining memory, but not more than all concurrent sequences
//                               can fill. While the other settings are chosen, the pool is a fifth
//                               of the device's limit or, if nothing fits then, a twentieth or one
//                               sequence
// The choice depends only on the configuration and the budget. Returns the errors of
// LoadModelConfig and PlanTraining for the choice that takes least, and replaces nothing then.
absl::StatusOr<EnginePlan> ResolveAuto(TrainConfig* config, const std::string& model_dir,
                                       const MemoryBudget& budget,
                                       const RunPlanOptions& options = {});

// Returns the lines of further engines of the process over a model like the student's: of a teacher
// that is the student, and of evaluations beside training. There are none for a run without them:
//   teacher weights      the teacher's own weights with their packed copies, unless they are live
//   teacher engine       activations and logits of its engine
//   evaluation weights   the copy of the weights (eval.mode beside), with its packed copy
//   evaluation engine    the KV pool, and the activations and logits of a step; with eval.measure
//                        kl those of a forward pass
// The average of a teacher's weights is the optimizer's (TrainingPlanInput::keeps_average). `model`
// is the student's configuration, and `dtype` the type in which it is trained.
std::vector<MemoryLine> ModelCopyLines(const TrainConfig& config, const ModelConfig& model,
                                       DataType dtype, const MemoryBudget& budget);

// Returns the number of checkpoints that a run keeps besides the newest: the best one, the one that
// a roll-back would go to, and the one whose weights are evaluated beside training.
int64_t MaxPinnedCheckpoints(const TrainConfig& config);

// Returns the number of versions of the weights that exist at once for rollout.endpoints and for
// rollout.eval_endpoints: each rank writes one, and each server may still be reading an older one.
int64_t MaxPublishedVersions(const TrainConfig& config, int64_t num_ranks);

// Plans the disks of a new run of `config` on `num_ranks` ranks (disk_plan.h). Errors are those of
// LoadModelConfig.
absl::StatusOr<DiskPlan> DiskPlanOf(const TrainConfig& config, const std::string& model_dir,
                                    int64_t num_ranks);

// Returns the work of a step for EstimateStep. REQUIRES: nothing in the configuration is auto.
absl::StatusOr<StepWork> StepWorkOf(const TrainConfig& config, const std::string& model_dir,
                                    int64_t num_ranks);

}  // namespace taopd
