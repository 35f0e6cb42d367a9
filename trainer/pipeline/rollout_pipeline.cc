#include "trainer/pipeline/rollout_pipeline.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/rollouts/step_rollouts.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

// Returns whether each rollout has the student's most probable tokens, if the support needs them.
// Stored rollouts of a run with another objective.support may lack them.
bool HaveCandidates(const TrainConfig& config, const StepInFlight& step) {
  const auto k = static_cast<size_t>(MakeSupportOptions(config, /*vocab_size=*/0).student_top_k);
  return std::ranges::all_of(step.rollouts, [k](const auto& entry) {
    const Rollout& rollout = entry.second->rollout;
    return rollout.top_ids.size() == k * rollout.response_ids.size();
  });
}

}  // namespace

void RolloutPipeline::Drop() {
  if (batches_.empty()) return;
  context_->rollout_engine->CancelAll();
  for (const Batch& batch : batches_) {
    batch.rollouts->WaitAllGenerated();
    if (update_teacher_) batch.rollouts->WaitIdle();
  }
  batches_.clear();
}

absl::Status RolloutPipeline::WaitForBatch(ScoredBatch* rollouts) const {
  rollouts->WaitAllGenerated();
  if (!update_teacher_) return rollouts->AllGenerated();
  // The teacher is an engine of this process. Servers end an outage by themselves.
  rollouts->WaitIdle();
  return rollouts->WaitScored(0, rollouts->size(), [] { return absl::OkStatus(); });
}

std::vector<const PromptRecord*> RolloutPipeline::NextPrompts() {
  std::vector<const PromptRecord*> prompts;
  for (const int64_t row : order_.Next(context_->config->data.train_batch_size)) {
    prompts.push_back(&(*prompts_)[static_cast<size_t>(row)]);
  }
  return prompts;
}

absl::Status RolloutPipeline::Restart(const PipelinePosition& position,
                                      const std::vector<StepInFlight>& stored) {
  Drop();
  TAOPD_RETURN_IF_ERROR(order_.Restore(position.epoch, position.epoch_index));
  next_step_ = position.num_steps;
  if (position.is_within_step) {
    NextPrompts();
    ++next_step_;
  }
  // Weights between two mini-batches are not a version; they generate evaluations only.
  weights_->Take(position.is_within_step ? kLiveWeights : position.num_steps);
  TAOPD_RETURN_IF_ERROR(Continue(stored));
  const int64_t num_steps = context_->config->trainer.total_steps;
  const int64_t first_generated = std::min(num_steps, position.num_steps + async_steps());
  if (position.num_steps > 0 && next_step_ < first_generated) {
    LogWarning("rollouts are missing in the checkpoint; newer weights generate them again",
               {{"from_step", next_step_ + 1}, {"to_step", first_generated}});
  }
  if (!position.is_within_step) Fill(position.num_steps);
  return absl::OkStatus();
}

absl::Status RolloutPipeline::Continue(const std::vector<StepInFlight>& stored) {
  for (const StepInFlight& step : stored) {
    const int64_t version = step.policy_version();
    if (step.step != next_step_ || version < OldestVersion(step.step)) break;
    if (!HaveCandidates(*context_->config, step)) break;
    // The version of the teacher that could score the others is gone.
    if (update_teacher_ && step.scored.size() < step.rollouts.size()) break;
    TAOPD_ASSIGN_OR_RETURN(auto rollouts, ContinueRollouts(*context_, step, NextPrompts()));
    batches_.push_back({next_step_++, version, std::move(rollouts)});
  }
  return absl::OkStatus();
}

void RolloutPipeline::Fill(int64_t num_steps) {
  const int64_t end =
      std::min(context_->config->trainer.total_steps, num_steps + async_steps() + 1);
  for (; next_step_ < end; ++next_step_) {
    batches_.push_back({next_step_, weights_->version(),
                        StartRollouts(*context_, next_step_, NextPrompts(), weights_->version())});
  }
}

std::shared_ptr<ScoredBatch> RolloutPipeline::Take(int64_t step) {
  TAOPD_CHECK(!batches_.empty() && batches_.front().step == step);
  return batches_.front().rollouts;
}

absl::Status RolloutPipeline::StepDone(int64_t num_steps, PhaseTimes* times) {
  while (!batches_.empty() && batches_.front().step < num_steps) batches_.pop_front();
  {
    const PhaseTimer timer(times, Phase::kRollout);
    // The error of a rollout is that of the step that trains on it.
    for (const Batch& batch : batches_) WaitForBatch(batch.rollouts.get()).IgnoreError();
  }
  {
    const PhaseTimer timer(times, Phase::kPack);
    weights_->Take(num_steps);
    if (update_teacher_) TAOPD_RETURN_IF_ERROR(update_teacher_(num_steps));
  }
  Fill(num_steps);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StepInFlight>> RolloutPipeline::InFlight(int64_t num_steps,
                                                                    bool is_within_step) const {
  std::vector<StepInFlight> steps;
  const std::vector<int64_t> sequences = SequencesOfStep(*context_->config, context_->shares);
  for (const Batch& batch : batches_) {
    if (batch.step < num_steps + (is_within_step ? 1 : 0)) continue;
    if (!is_within_step && batch.policy_version == num_steps) continue;
    if (const absl::Status whole = WaitForBatch(batch.rollouts.get()); !whole.ok()) {
      return Annotate(whole, Concat("step ", batch.step + 1, ", which the weights after step ",
                                    batch.policy_version, " generate"));
    }
    StepInFlight& step = steps.emplace_back();
    step.step = batch.step;
    const std::vector<bool> scored = batch.rollouts->scored();
    for (size_t i = 0; i < sequences.size(); ++i) {
      step.rollouts[sequences[i]] = {batch.rollouts,
                                     &batch.rollouts->item(static_cast<int64_t>(i))};
      if (scored[i]) step.scored.insert(sequences[i]);
    }
  }
  return steps;
}

}  // namespace taopd
