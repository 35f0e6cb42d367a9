#include "trainer/commands/train/run_pipeline.h"

#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/commands/train/setup/ranks.h"

namespace taopd {

// The positions come from older weights with every objective. What the sampled token estimates is
// corrected by the ratio of the two policies; nothing else is.
void RunPipeline::WarnOfStaleness() const {
  const ObjectiveTerms terms = parts_.config.objective.Terms();
  std::string uncorrected;
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.needs & kReadsBehavior) != 0) continue;
    uncorrected += Concat(uncorrected.empty() ? "" : ", ", info.name);
  }
  const bool has_stale_support = parts_.config.objective.support != SupportChoice::kTeacher;
  if (uncorrected.empty() && !has_stale_support) return;
  LogWarning(
      "trainer.async_steps: the responses come from older weights, and the objective assumes that "
      "they are the current policy's; watch policy/kl_behavior",
      {{"async_steps", parts_.config.trainer.async_steps},
       {"without_ratio", uncorrected},
       {"support", NameOf(parts_.config.objective.support)}});
}

absl::Status RunPipeline::Restart(bool other_prompts) {
  if (parts_.rollout_weights() == nullptr) return absl::OkStatus();
  if (!pipeline_) {
    RolloutPipeline::TeacherUpdate update_teacher;
    if (FollowsStudent(parts_.config.teacher, parts_.config.teachers)) {
      update_teacher = [this](int64_t num_steps) {
        return parts_.self_teacher->StepDone(num_steps);
      };
    }
    pipeline_.emplace(&parts_.context, parts_.rollout_weights(), &parts_.data.prompts,
                      *parts_.data.order, std::move(update_teacher));
    parts_.context.rollouts_ahead = &*pipeline_;
    if (parts_.is_root() && parts_.config.trainer.async_steps > 0) WarnOfStaleness();
  }
  const PipelinePosition position = {.num_steps = parts_.state.step,
                                     .epoch = parts_.state.epoch,
                                     .epoch_index = parts_.state.epoch_index,
                                     .is_within_step = saves_.pending() != nullptr};
  absl::StatusOr<std::vector<StepInFlight>> stored = std::vector<StepInFlight>();
  const std::string dir = parts_.run.checkpoint_dir() + "/" + kInFlightDir;
  if (!other_prompts && !parts_.run.checkpoint_dir().empty() && FileExists(dir))
    stored = ReadStepsInFlight(dir, parts_.config, parts_.context.shares);
  const absl::Status restarted =
      stored.ok() ? pipeline_->Restart(position, *stored) : stored.status();
  return AgreeOnFailure(parts_.group, restarted.ok() ? restarted : BadData(restarted));
}

void RunPipeline::Drop() {
  if (pipeline_) pipeline_->Drop();
}

absl::Status RunPipeline::KeepInFlight() {
  if (!pipeline_) return absl::OkStatus();
  auto steps = pipeline_->InFlight(parts_.state.step, saves_.pending() != nullptr);
  absl::Status whole = steps.status();
  if (!whole.ok()) {
    whole = Annotate(whole, "no checkpoint is possible, and the newest one is intact");
    whole =
        WithExitCode(absl::IsResourceExhausted(whole) ? kExitOutOfMemory : kExitInternal, whole);
  }
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(parts_.group, whole));
  parts_.run.checkpoints().SetInFlight(
      [steps = *std::move(steps), rank = parts_.group->rank()](const std::string& dir) {
        return WriteStepsInFlight(steps, rank, dir + "/" + kInFlightDir);
      });
  return absl::OkStatus();
}

}  // namespace taopd
