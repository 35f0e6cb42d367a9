// Rollouts that are generated ahead of the steps (trainer.async_steps) or elsewhere
// (rollout.endpoints), in a distillation run.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <optional>

#include "trainer/commands/train/run_saves.h"
#include "trainer/pipeline/rollout_pipeline.h"

namespace taopd {

// Without either of them, all calls do nothing.
class RunPipeline {
 public:
  // Both must outlive the object.
  RunPipeline(TrainingParts* parts, RunSaves* saves) : parts_(*parts), saves_(*saves) {}

  // Begins with the current weights and, unless the run continues with `other_prompts`, the
  // rollouts of the checkpoint from which they come. Call it after saves->Restore().
  absl::Status Restart(bool other_prompts);
  // Drops what is in flight, before the weights of a checkpoint are loaded. Restart must follow.
  void Drop();
  // Makes the next checkpoint hold what is in flight. Returns the error of a rollout that failed on
  // any rank: there can be no checkpoint then.
  absl::Status KeepInFlight();

 private:
  // Warns of what the loss does not correct.
  void WarnOfStaleness() const;

  TrainingParts& parts_;
  RunSaves& saves_;
  std::optional<RolloutPipeline> pipeline_;
};

}  // namespace taopd
