#include "trainer/loop/run_pipeline.h"

#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/setup/ranks.h"

namespace taopd {

// The responses come from older weights. An objective that estimates a mean from the sampled token
// corrects it by the ratio of the two policies; the others correct nothing.
void RunPipeline::WarnOfStaleness() const {
  const ObjectiveTerms terms = config_.objective.Terms();
  std::string uncorrected;
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.traits & kReadsBehavior) != 0) continue;
    uncorrected += Concat(uncorrected.empty() ? "" : ", ", info.name);
  }
  const bool has_stale_support = config_.objective.support != SupportChoice::kTeacher;
  if (uncorrected.empty() && !has_stale_support) return;
  LogWarning(
      "trainer.async_steps: the responses come from older weights, and the objective assumes that "
      "they are the current policy's; watch policy/kl_behavior",
      {{"async_steps", config_.trainer.async_steps},
       {"without_ratio", uncorrected},
       {"support", NameOf(config_.objective.support)}});
}

absl::Status RunPipeline::Restart(bool other_prompts) {
  if (rollouts_.weights_ahead() == nullptr) return absl::OkStatus();
  if (!pipeline_) {
    RolloutPipeline::TeacherUpdate update_teacher;
    if (FollowsStudent(config_.teacher, config_.teachers)) {
      update_teacher = [this](int64_t step) {
        return context_.teacher.self->UpdateAfterStep(step);
      };
    }
    pipeline_.emplace(&step_context_, rollouts_.weights_ahead(), &data_.prompts, *data_.order,
                      std::move(update_teacher));
    step_context_.rollouts_ahead = &*pipeline_;
    if (group_.is_root() && config_.trainer.async_steps > 0) WarnOfStaleness();
  }
  const PipelinePosition position = {.num_steps = run_.state().step,
                                     .epoch = run_.state().epoch,
                                     .epoch_index = run_.state().epoch_index,
                                     .is_within_step = lifecycle_.pending() != nullptr};
  absl::StatusOr<std::vector<StepInFlight>> stored = std::vector<StepInFlight>();
  if (!other_prompts && !run_.checkpoint_dir().empty()) stored = ReadStored();
  const absl::Status restarted =
      stored.ok() ? pipeline_->Restart(position, *stored) : stored.status();
  return AgreeOnFailure(&group_, restarted.ok() ? restarted : BadData(restarted));
}

absl::StatusOr<std::vector<StepInFlight>> RunPipeline::ReadStored() const {
  const std::string dir = run_.checkpoint_dir() + "/" + kInFlightDir;
  if (!FileExists(dir)) return std::vector<StepInFlight>();
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> changed, run_.ChangedSinceCheckpoint());
  return ReadStepsInFlight(dir, config_, step_context_.shares, changed);
}

absl::Status RunPipeline::KeepInFlight() {
  if (!pipeline_) return absl::OkStatus();
  auto steps = pipeline_->InFlight(run_.state().step, lifecycle_.pending() != nullptr);
  absl::Status whole = steps.status();
  if (!whole.ok()) {
    whole = Annotate(whole, "no checkpoint is possible, and the newest one is intact");
    whole = WithExitCode(CodeOfFailedStep(whole), whole);
  }
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(&group_, whole));
  run_.checkpoints().SetInFlight(
      [steps = *std::move(steps), rank = group_.rank()](const std::string& dir) {
        return WriteStepsInFlight(steps, rank, dir + "/" + kInFlightDir);
      });
  return absl::OkStatus();
}

}  // namespace taopd
