// The parts of a distillation run, by their purpose. The set-up (training_setup.h) makes them, and
// the classes of the loop (training_run.h) use them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/base/service/service_manager.h"
#include "trainer/control/control_server.h"
#include "trainer/control/liveness.h"
#include "trainer/control/run_control.h"
#include "trainer/data/epoch_order.h"
#include "trainer/grading/grader.h"
#include "trainer/pipeline/generation_weights.h"
#include "trainer/pipeline/published_weights.h"
#include "trainer/reward/step_rewards.h"
#include "trainer/rollout/endpoints/remote_rollout_engine.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/setup/plan/memory_plan.h"
#include "trainer/setup/training/evaluation_snapshot.h"
#include "trainer/step/step_context.h"
#include "trainer/step/timing/timeline.h"
#include "trainer/student/self_teacher.h"

namespace taopd {

// The rows that a run trains on and evaluates on, and the grader of the answers to them.
struct TrainingData {
  std::vector<PromptRecord> prompts;        // data.train
  std::vector<PromptRecord> problems;       // data.val
  std::optional<EpochOrder> order;          // of `prompts`; the loop advances it
  std::vector<DataShare> shares;            // from data.train_weights
  Metrics metrics;                          // how the rows of data.train were used
  std::unique_ptr<grading::Grader> grader;  // null if eval.grader is a URL

  // Returns the next `size` prompts.
  std::vector<const PromptRecord*> NextBatch(int64_t size);
  // Returns whether the run has evaluations.
  bool IsEvaluated(const EvalConfig& eval) const {
    return eval.measure != EvalMeasure::kNone && !problems.empty();
  }
};

// The sources of responses, for steps and for evaluations.
struct RolloutParts {
  // With trainer.async_steps and without rollout.endpoints; otherwise null.
  std::unique_ptr<GenerationWeights> generation_weights;
  std::unique_ptr<InferenceEngine> engine;
  std::optional<LocalRolloutEngine> local;  // of evaluations, and of rollouts
  // The servers of rollout.endpoints; without them the pointers are null. `workers` and
  // `evaluation_workers` are moved into `servers` and `evaluation_snapshot`.
  std::vector<std::unique_ptr<RolloutWorker>> workers, evaluation_workers;
  std::unique_ptr<RemoteRolloutEngine> servers;
  std::unique_ptr<PublishedWeights> published_weights;
  std::unique_ptr<EvaluationSnapshot> evaluation_snapshot;  // null unless eval.mode is beside

  // Returns the weights that generate rollouts ahead of the steps; null if none do.
  RolloutWeights* weights_ahead() const {
    if (published_weights != nullptr) return published_weights.get();
    return generation_weights.get();
  }
};

// The source of scores. It is destroyed before the RolloutParts and the student, which its client's
// callbacks use.
struct TeacherParts {
  std::optional<SelfTeacher> self;  // set if the student is a teacher
  std::unique_ptr<TeacherClient> client;
  TeacherInfo info;

  TeacherHealth Health() const;
};

// The source of rewards, if there are any.
struct RewardParts {
  std::unique_ptr<RewardSource> source;
  StepRewardOptions options;
};

// Lets operators and systemd watch the process. `server` and `service_manager` read `liveness`.
struct ControlParts {
  std::optional<Liveness> liveness;
  std::unique_ptr<ControlServer> server;  // of rank 0
  ServiceManager service_manager;
};

// The parts that the classes of the loop use. Owns nothing.
struct RunContext {
  const TrainConfig& config;
  CheckpointedRun& run;     // with the student, its state and the ranks
  RunControl& run_control;  // the requests of other threads, and the status that they see
  RunTrace& trace;
  TrainingData& data;
  RolloutParts& rollouts;
  TeacherParts& teacher;
  StepContext& step_context;
};

// Owns the parts of a run, which are destroyed in reverse order. Not movable, because parts point
// to each other. Not thread-safe, except CurrentActivity.
struct TrainingParts {
  // `run_control` and `group` must outlive it.
  TrainingParts(TrainConfig config, RunControl* run_control, ProcessGroup* group);
  TrainingParts(const TrainingParts&) = delete;
  TrainingParts& operator=(const TrainingParts&) = delete;

  RunContext Context() {
    return {config, run, *run_control, trace, data, rollouts, teacher, step_context};
  }
  // Returns the counts of the loop, the engine and the teacher that Liveness compares. Any thread
  // may call it once the set-up is done.
  Liveness::Activity CurrentActivity() const;

  const absl::Time start = absl::Now();
  TrainConfig config;  // the set-up replaces what is auto
  RunControl* const run_control;
  ProcessGroup* const group;
  CheckpointedRun run;
  RunTrace trace;
  PlannedMemory memory;
  TrainingData data;
  TeacherViewOptions teacher_views;  // used if the teacher has prompts of its own
  StepContext step_context;
  RolloutParts rollouts;
  TeacherParts teacher;
  RewardParts rewards;
  ControlParts control;
};

}  // namespace taopd
