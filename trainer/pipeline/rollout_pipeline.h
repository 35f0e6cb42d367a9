// Rollouts that are generated N steps ahead of the step that trains on them (trainer.async_steps),
// so that the engine works while the teacher scores and the student is trained, evaluated and
// saved.
//
// Versions: version v is the student's weights after v steps. Step t (0-based) trains on rollouts
// of exactly version max(0, t - N), whatever the timing. When step t - 1 is done, version t is
// taken and step t + N is generated with it:
//
//   training thread   step 0 | step 1 | step 2 | ...
//   engine      0, 1 from v0 | 2 from v1 | 3 from v2 | ...                                  (N = 1)
//
// The engine has one version at a time, so a version is taken when both sides are ready: when the
// previous step is done, and when the rollouts of the previous version are generated. Prompts,
// seeds and the order of all sums are those of a run with N = 0.
//
// A teacher whose weights follow the student's (TeacherUpdate) has versions, too: the responses of
// version v are scored by the teacher's version v, that is, by the weights that it has after v
// steps. A version of both is therefore taken when the responses of the previous version are
// generated and scored, and a checkpoint's responses have all of their scores.
//
// N = 0 is useful only if other processes generate: a step's rollouts then begin when the previous
// step is done, during its evaluation and checkpoint.
//
// Checkpoints: after t steps, the rollouts of steps t .. t + N - 1 come from weights that the
// checkpoint does not hold, so it stores these rollouts (pending_step.h). Those of step t + N are
// generated again from the checkpoint's weights, with the same bits.
//
// Memory: the rollouts and scores of at most N + 1 steps. Used by the training thread only. All
// ranks make the same calls, each for its own part. Only TeacherUpdate communicates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "trainer/data/epoch_order.h"
#include "trainer/pipeline/rollout_weights.h"
#include "trainer/step/rollouts/pending_step.h"
#include "trainer/step/step_context.h"

namespace taopd {

// The position of a run.
struct PipelinePosition {
  int64_t num_steps = 0;  // finished steps
  // The position in the data before the next step; see EpochOrder.
  int64_t epoch = 0;
  int64_t epoch_index = 0;
  // Whether the weights are between two mini-batches of the next step, whose rollouts are elsewhere
  // (PendingStep).
  bool is_within_step = false;
};

class RolloutPipeline final : public RolloutsAhead {
 public:
  // Brings the teacher's weights up to those after `num_steps` steps. All ranks call it.
  using TeacherUpdate = std::function<absl::Status(int64_t num_steps)>;

  // `context` must have a teacher, and an engine that generates with the weights that `weights`
  // takes and reports weights->version(). `prompts` are the rows that `order` numbers. All of them
  // must outlive the pipeline. `update_teacher` is null unless the teacher's weights follow the
  // student's.
  RolloutPipeline(const StepContext* context, RolloutWeights* weights,
                  const std::vector<PromptRecord>* prompts, EpochOrder order,
                  TeacherUpdate update_teacher = nullptr)
      : context_(context),
        weights_(weights),
        prompts_(prompts),
        order_(std::move(order)),
        update_teacher_(std::move(update_teacher)) {}
  // Ends the generation. Answers of the teacher may still be outstanding, unless its weights follow
  // the student's.
  ~RolloutPipeline() override { Drop(); }
  RolloutPipeline(const RolloutPipeline&) = delete;
  RolloutPipeline& operator=(const RolloutPipeline&) = delete;

  // Drops the steps in flight and begins at `position` with the student's current weights. `stored`
  // are the rollouts of a checkpoint of that position. Uses the first of these, as long as
  // trainer.async_steps allows their version and they have the student's most probable tokens if
  // the objective needs them. Generates the others with the current weights, and those that are
  // missing because trainer.async_steps or trainer.total_steps has grown. Returns DATA_LOSS if the
  // rollouts belong to other prompts, and the error of EpochOrder::Restore.
  absl::Status Restart(const PipelinePosition& position, const std::vector<StepInFlight>& stored);
  // Drops the steps in flight. The only valid next call is Restart.
  void Drop();

  std::shared_ptr<ScoredBatch> Take(int64_t step) override;
  absl::Status StepDone(int64_t num_steps, PhaseTimes* times) override;

  // Returns what a checkpoint at this position must hold: the rollouts that come from other weights
  // than its own. Waits until they are generated and, if only this version of the teacher can score
  // them, scored. If that fails for a rollout, returns its error, and there can be no checkpoint.
  absl::StatusOr<std::vector<StepInFlight>> InFlight(int64_t num_steps, bool is_within_step) const;

 private:
  struct Batch {
    int64_t step = 0;
    int64_t policy_version = 0;
    std::shared_ptr<ScoredBatch> rollouts;
  };
  // Waits until the batch no longer needs the current versions of the student and the teacher:
  // until its rollouts are generated and, if the teacher has versions, scored.
  absl::Status WaitForBatch(ScoredBatch* rollouts) const;
  int64_t async_steps() const { return context_->config->trainer.async_steps; }
  // Returns the oldest version that may generate step `step`.
  int64_t OldestVersion(int64_t step) const { return std::max<int64_t>(0, step - async_steps()); }
  std::vector<const PromptRecord*> NextPrompts();
  // Uses the rollouts of a checkpoint.
  absl::Status Continue(const std::vector<StepInFlight>& stored);
  // Starts the steps whose rollouts the current version generates.
  void Fill(int64_t num_steps);

  const StepContext* const context_;
  RolloutWeights* const weights_;
  const std::vector<PromptRecord>* const prompts_;
  EpochOrder order_;
  const TeacherUpdate update_teacher_;
  std::deque<Batch> batches_;  // of consecutive steps
  int64_t next_step_ = 0;      // the first step that is not started
};

}  // namespace taopd
