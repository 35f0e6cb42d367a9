// The parts of a distillation run that its set-up makes and everything else uses:
//
//   setup/             makes them: all that can refuse a run before its first step
//   plan/              the memory plan, and the settings that are auto
//   training_run.h     the loop over the steps
//   dry_run.h          one step that leaves nothing, with --dry-run
//   run_saves.h        checkpoints, and the ends of a run
//   run_evaluations.h  evaluations, the best checkpoint, early stop
//   evaluation/        a rank's part of an evaluation, and what one beside training computes with
//   run_pipeline.h     rollouts ahead of the steps
//   run_guard.h        the collapse guard and roll-backs
//   run_report.h       the metrics of a step
//   setup/ranks.h      several ranks
//
// With several ranks each runs the same loop on its share of the sequences. Only rank 0 decides
// (requests, evaluations, metrics) and writes; its decisions go to all ranks.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/service/service_manager.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/commands/train/evaluation/evaluation_snapshot.h"
#include "trainer/control/control_server.h"
#include "trainer/control/liveness.h"
#include "trainer/control/run_state.h"
#include "trainer/data/epoch_order.h"
#include "trainer/guard/wall_time.h"
#include "trainer/pipeline/generation_weights.h"
#include "trainer/pipeline/published_weights.h"
#include "trainer/reward/step_rewards.h"
#include "trainer/rollout/endpoints/remote_rollout_engine.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/step/step_context.h"
#include "trainer/step/timing/timeline.h"

namespace taopd {

// Returns the exit code of a run whose step has failed with `status`.
ExitCode CodeOfFailedStep(const absl::Status& status);

// The rows that a run trains on, and those that it evaluates on.
struct TrainingData {
  std::vector<PromptRecord> prompts;   // data.train
  std::vector<PromptRecord> problems;  // data.val
  std::optional<EpochOrder> order;     // of `prompts`
  std::vector<DataShare> shares;       // from data.train_weights
  Metrics metrics;                     // how the rows of data.train were used
};

// The results of the memory plan.
struct PlannedMemory {
  std::string table;             // for a failure
  double gb = 0;                 // of the device, in GiB; 0 without a plan
  int64_t copy_limit_bytes = 0;  // the limit of a checkpoint's copy
};

// The servers of rollout.endpoints. Without them the pointers are null.
struct RemoteRollouts {
  // Until `engine` and the run's EvaluationSnapshot have them.
  std::vector<std::unique_ptr<RolloutWorker>> workers, evaluation_workers;
  std::unique_ptr<RemoteRolloutEngine> engine;
  std::unique_ptr<PublishedWeights> weights;
};

// One thread uses it, except where a member says otherwise. Everything points into it, so it stays
// where it is.
struct TrainingParts {
  // `run_state`, which carries the requests of other threads, and `group` must outlive it.
  TrainingParts(TrainConfig config, RunState* run_state, ProcessGroup* group);
  TrainingParts(const TrainingParts&) = delete;
  TrainingParts& operator=(const TrainingParts&) = delete;

  bool is_root() const { return group->is_root(); }
  bool evaluates() const {
    return config.eval.measure != EvalMeasure::kNone && !data.problems.empty();
  }
  TeacherHealth Health() const;
  // Returns the counts of the loop, the engine and the teacher that Liveness compares.
  Liveness::Activity CurrentActivity() const;
  // Returns the weights that generate rollouts ahead of the steps; null if none do.
  RolloutWeights* rollout_weights() const {
    if (remote.weights != nullptr) return remote.weights.get();
    return generation_weights.get();
  }
  // Puts state and position in the data back to where a step began.
  absl::Status UndoStep(const TrainState& before);
  // Adds a span that ends now to the timeline, if the current step is traced.
  void Trace(const char* name, absl::Time start);

  const absl::Time start = absl::Now();
  // Members are destroyed in reverse: the control server first, then the client, whose callbacks
  // use the timeline, the engine and the student.
  TrainConfig config;
  RunState* const run_state;
  ProcessGroup* const group;
  CheckpointedRun run;
  Student& student = run.student();
  TrainState& state = run.state();

  TrainingData data;
  std::unique_ptr<grading::Grader> grader;  // null if eval.grader is a URL

  Timeline timeline;
  TeacherViewOptions teacher_views;  // used if the teacher has prompts of its own
  StepContext context;
  // With trainer.async_steps and without rollout.endpoints; otherwise null.
  std::unique_ptr<GenerationWeights> generation_weights;
  std::unique_ptr<InferenceEngine> engine;
  std::optional<LocalRolloutEngine> rollout_engine;  // of evaluations, and of rollouts
  RemoteRollouts remote;
  std::unique_ptr<EvaluationSnapshot> evaluation_snapshot;  // null unless eval.mode is beside
  TeacherInfo teacher_info;
  std::optional<SelfTeacher> self_teacher;  // set if the student is a teacher
  std::unique_ptr<TeacherClient> teacher;
  StepRewardOptions step_rewards;               // used if there are rewards
  std::unique_ptr<RewardSource> reward_source;  // null if there are none

  PlannedMemory memory;
  double peak_flops = 0;  // of this rank's device; 0: not known
  WallTimeLimit wall_time;

  // Null until the run has begun; read by the control server's threads.
  std::atomic<const RunOutput*> output = nullptr;
  // Set before the control server starts, which asks it.
  std::optional<Liveness> liveness;
  std::unique_ptr<ControlServer> control;  // of rank 0
  ServiceManager service;                  // its watchdog asks liveness
};

}  // namespace taopd
