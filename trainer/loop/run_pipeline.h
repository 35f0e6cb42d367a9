// Rollouts that are generated ahead of the steps (trainer.async_steps) or elsewhere
// (rollout.endpoints), in a distillation run.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "trainer/loop/run_lifecycle.h"
#include "trainer/pipeline/rollout_pipeline.h"
#include "trainer/setup/training/training_parts.h"

namespace taopd {

// Without trainer.async_steps and rollout.endpoints, all calls do nothing.
class RunPipeline {
 public:
  // All must outlive the object. Restart makes the steps of context.step_context use the rollouts.
  RunPipeline(const RunContext& context, RunLifecycle* lifecycle)
      : context_(context), lifecycle_(*lifecycle) {}

  // Begins with the current weights and, unless the run continues with `other_prompts`, the
  // rollouts of the checkpoint from which they come. Call it after lifecycle->Restore().
  absl::Status Restart(bool other_prompts);
  // Drops what is in flight, before the weights of a checkpoint are loaded. Restart must follow.
  void Drop() {
    if (pipeline_) pipeline_->Drop();
  }
  // Makes the next checkpoint hold what is in flight. Returns the error of a rollout that failed on
  // any rank: there can be no checkpoint then.
  absl::Status KeepInFlight();

 private:
  // Reads the steps in flight of the checkpoint from which the state was loaded.
  absl::StatusOr<std::vector<StepInFlight>> ReadStored() const;
  // Warns of objectives that assume responses of the current weights.
  void WarnOfStaleness() const;

  const RunContext context_;
  RunLifecycle& lifecycle_;
  const TrainConfig& config_ = context_.config;
  CheckpointedRun& run_ = context_.run;
  ProcessGroup& group_ = run_.group();
  const TrainingData& data_ = context_.data;
  const RolloutParts& rollouts_ = context_.rollouts;
  StepContext& step_context_ = context_.step_context;
  std::optional<RolloutPipeline> pipeline_;
};

}  // namespace taopd
