// The inputs of a training step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/clock.h"
#include "common/dist/process_group.h"
#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/config/train_config.h"
#include "trainer/dist/shares.h"
#include "trainer/optim/adamw.h"
#include "trainer/reward/step_rewards.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/step/loss/bad_batch.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/scored_batch.h"
#include "trainer/step/teacher_views.h"
#include "trainer/step/timing/phase_times.h"
#include "trainer/step/timing/timeline.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// The interface between a step and rollouts that are generated ahead of it.
// trainer/pipeline/rollout_pipeline.h implements it. Used by the training thread only. An abandoned
// step has cancelled the rollouts of the current weights, so the implementation must be restarted
// before the step is tried again.
class RolloutsAhead {
 public:
  virtual ~RolloutsAhead() = default;
  // Returns the batch of step `step` (0-based), all of whose rollouts are being generated or exist.
  virtual std::shared_ptr<ScoredBatch> Take(int64_t step) = 0;
  // Waits until the rollouts of the previous version are generated, takes the student's weights
  // after `num_steps` steps as a new version, and starts the rollouts of that version. Adds the
  // times of the wait and of the copy to `times`, if it is not null. Returns the errors of the
  // ranks' group, and starts nothing in that case.
  virtual absl::Status StepDone(int64_t num_steps, PhaseTimes* times) = 0;
};

// Owns nothing; everything it points to must outlive the step.
struct StepContext {
  const TrainConfig* config = nullptr;
  Decoder* student = nullptr;
  AdamW* optimizer = nullptr;  // has the student's parameters and a shard per rank
  // The ranks that train together, and this rank's sequences of a mini-batch.
  ProcessGroup* group = nullptr;
  Shares shares;
  // Generates with the student's weights, which the step changes in place, or with a copy of them
  // if there are rollouts_ahead.
  RolloutEngine* rollout_engine = nullptr;
  // If not null, the step's rollouts are generated ahead of it. Otherwise they are generated when
  // the step begins, with the current weights.
  RolloutsAhead* rollouts_ahead = nullptr;
  TeacherClient* teacher = nullptr;
  // If not null, the teacher sees prompts of its own.
  const TeacherViewOptions* teacher_views = nullptr;
  // If not null, the responses are rewarded.
  const StepRewardOptions* rewards = nullptr;
  // The objective, the workspace and the student's temperature, which is that of the rollouts.
  HeadOptions head;
  Aggregation aggregation = Aggregation::kTokenMean;
  Clock* clock = Clock::Real();
  // Gets the spans of the step's phases, rollouts and scores; if null, times are only summed. Must
  // outlive the teacher's callbacks.
  Timeline* timeline = nullptr;
  // Gets each mini-batch that is skipped because its loss or gradient is not finite.
  std::function<void(const BadBatch&)> on_bad_batch = [](const BadBatch&) {};
  // Runs about once a second while the step waits for rollouts or scores, which happens only before
  // the first update. An error from it abandons the step.
  std::function<absl::Status()> on_wait = [] { return absl::OkStatus(); };
  // Returns whether the run should stop; called before each micro-batch. Before the first update,
  // the step is then abandoned with CANCELLED. After it, the step runs to its end if that is likely
  // within stop_grace; otherwise it ends between two mini-batches (StepResult::pending).
  std::function<bool()> stop_requested = [] { return false; };
  absl::Duration stop_grace = absl::InfiniteDuration();
};

}  // namespace taopd
