// The collapse guard of a distillation run and its roll-backs.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

#include "trainer/guard/collapse_guard.h"
#include "trainer/guard/rollbacks.h"
#include "trainer/loop/run_evaluations.h"
#include "trainer/loop/run_lifecycle.h"
#include "trainer/loop/run_pipeline.h"
#include "trainer/step/train_step.h"

namespace taopd {

class RunGuard {
 public:
  // All must outlive the object. Checkpoints of `lifecycle` hold the guard's state and what is in
  // flight.
  RunGuard(const RunContext& context, RunLifecycle* lifecycle, RunEvaluations* evaluations,
           RunPipeline* pipeline);

  // Restores what a resumed or rolled back run remembers besides its state: the guard, the
  // roll-backs, the rest of a step, the best evaluation.
  absl::Status Restore();
  // Pauses a resumed run again if a guard had paused it and nobody has resumed it since.
  void RestorePause();
  // Removes the intent of a roll-back that a crash has left in rollbacks.json.
  void ClearRollbackIntent();
  // Returns the factor of the learning rate, over all roll-backs.
  double lr_factor() const { return rollbacks_.lr_factor; }
  // Adds the metrics that the guard needs.
  void AddMetrics(const StepResult& result, Metrics* metrics);
  // Shows the metrics of a step to the guard and carries out its action. Returns whether the run
  // has gone back to an earlier checkpoint, whose step state.step is then. An error ends the run.
  absl::StatusOr<bool> Observe(const Metrics& metrics);

 private:
  absl::Status RestoreFiles();
  absl::Status SkipUndonePrompts();
  // Returns the last step whose weights are good: the metrics of a step are those of the weights
  // before its update.
  int64_t last_good_weights() const { return guard_.last_good_step() - 1; }
  absl::Status RollBack(const GuardAlarm& alarm);
  absl::Status RecordRollback(const Rollbacks& rollbacks, const std::optional<Rollbacks>& intent);
  void LogAlarm(const GuardAlarm& alarm);
  void LogRollback(const GuardAlarm& alarm, int64_t from_step, const std::string& path);
  void WriteEvent(nlohmann::ordered_json event);

  const RunContext context_;
  RunLifecycle& lifecycle_;
  RunEvaluations& evaluations_;
  RunPipeline& pipeline_;
  const TrainConfig& config_ = context_.config;
  CheckpointedRun& run_ = context_.run;
  ProcessGroup& group_ = run_.group();
  RunControl& run_control_ = context_.run_control;
  TrainingData& data_ = context_.data;
  const StepContext& step_context_ = context_.step_context;
  CollapseGuard guard_{config_.guard};
  Rollbacks rollbacks_;
  bool skips_prompts_ = false;  // whether the run leaves out the prompts of undone steps
  std::vector<Rollout> probe_;  // responses for policy/kl_to_start; empty if it is off
};

}  // namespace taopd
