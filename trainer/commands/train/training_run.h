// The distillation run of the subcommand train: set-up, the loop over steps, evaluation,
// checkpoints, the end. training_setup.cc holds what comes before the first step,
// training_loop.cc the rest.
//
// One thread runs it. RunState carries the requests of other threads to the loop.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/commands/commands.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/control/control_server.h"
#include "trainer/data/epoch_order.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/step/train_step.h"

namespace taopd {

class TrainingRun {
 public:
  // `state` must outlive the object.
  TrainingRun(TrainConfig config, RunState* state)
      : config_(std::move(config)),
        run_state_(state),
        run_(MakeRunOptions(config_, config_.student.dtype)) {}

  // Sets up and trains until the last step, a stop request or a failure. Call it once.
  std::optional<CommandFailure> Run(const StartMode& mode);

 private:
  // ---- Set-up: nothing of an old run changes before all of it has succeeded ----
  std::optional<CommandFailure> SetUp(const StartMode& mode);
  std::optional<CommandFailure> CheckNames();
  std::optional<CommandFailure> LoadData();
  std::optional<CommandFailure> ConnectTeacher();
  std::optional<CommandFailure> StartEngine();
  std::optional<CommandFailure> StartControl();

  // ---- The loop ----
  std::optional<CommandFailure> Step();
  void WaitWhilePaused();
  void Report(const StepResult& result, const std::vector<const PromptRecord*>& batch);
  // `when` as for RunOutput::WriteSamples.
  std::optional<CommandFailure> Evaluate(const std::string& when);
  std::optional<CommandFailure> Save();

  // ---- Ends ----
  std::optional<CommandFailure> StepFailed(const TrainState& before, const StepFailure& failure);
  std::optional<CommandFailure> Stopped();

  // Destroyed in reverse: the control server first, then the client, the engine, the student.
  TrainConfig config_;
  RunState* const run_state_;
  CheckpointedRun run_;
  Student& student_ = run_.student();
  TrainState& state_ = run_.state();
  std::vector<PromptRecord> prompts_;
  std::vector<PromptRecord> problems_;
  std::optional<EpochOrder> order_;
  Metrics data_metrics_;  // what became of the rows of data.train
  std::unique_ptr<grading::Grader> grader_;
  StepContext context_;
  std::unique_ptr<InferenceEngine> engine_;
  std::optional<LocalRolloutEngine> rollout_engine_;
  TeacherInfo teacher_info_;
  std::unique_ptr<TeacherClient> teacher_;
  // Null until the run has begun; read by the control server's threads.
  std::atomic<const RunOutput*> output_ = nullptr;
  std::unique_ptr<ControlServer> control_;
};

}  // namespace taopd
