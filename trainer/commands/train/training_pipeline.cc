// Rollouts that are generated ahead of the steps (trainer.async_steps), in a distillation run.
#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/commands/train/training_run.h"

namespace taopd {

// The positions come from older weights with every objective. What the sampled token estimates is
// corrected by the ratio of the two policies; nothing else is.
void TrainingRun::WarnOfStaleness() const {
  const ObjectiveTerms terms = config_.objective.Terms();
  std::string uncorrected;
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const ObjectiveInfo& info = InfoOf(terms.term[i].objective);
    if ((info.needs & kReadsBehavior) != 0) continue;
    uncorrected += Concat(uncorrected.empty() ? "" : ", ", info.name);
  }
  const bool has_stale_support = config_.objective.support != SupportChoice::kTeacher;
  if (uncorrected.empty() && !has_stale_support) return;
  LogWarning(
      "trainer.async_steps: the responses come from older weights, and the objective assumes that "
      "they are the present policy's; watch policy/kl_behavior",
      {{"async_steps", config_.trainer.async_steps},
       {"without_ratio", uncorrected},
       {"support", WordOf(config_.objective.support)}});
}

absl::Status TrainingRun::RestartPipeline() {
  if (generation_weights_ == nullptr) return absl::OkStatus();
  if (!pipeline_) {
    pipeline_.emplace(&context_, generation_weights_.get(), &prompts_, *order_);
    context_.rollouts_ahead = &*pipeline_;
    if (is_root()) WarnOfStaleness();
  }
  const PipelinePosition position = {.num_steps = state_.step,
                                     .epoch = state_.epoch,
                                     .epoch_index = state_.epoch_index,
                                     .is_within_step = pending_ != nullptr};
  absl::StatusOr<std::vector<StepInFlight>> stored = std::vector<StepInFlight>();
  const std::string dir = run_.checkpoint_dir() + "/" + kInFlightDir;
  if (!run_.checkpoint_dir().empty() && FileExists(dir))
    stored = ReadStepsInFlight(dir, config_, context_.shares);
  const absl::Status restarted =
      stored.ok() ? pipeline_->Restart(position, *stored) : stored.status();
  return AgreeOnFailure(group_, restarted.ok() ? restarted : BadData(restarted));
}

absl::Status TrainingRun::KeepInFlight() {
  if (!pipeline_) return absl::OkStatus();
  auto steps = pipeline_->InFlight(state_.step, pending_ != nullptr);
  absl::Status whole = steps.status();
  if (!whole.ok()) {
    whole = Annotate(whole, "no checkpoint is possible, and the newest one is intact");
    whole =
        WithExitCode(absl::IsResourceExhausted(whole) ? kExitOutOfMemory : kExitInternal, whole);
  }
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(group_, whole));
  run_.SetInFlight([steps = *std::move(steps), rank = group_->rank()](const std::string& dir) {
    return WriteStepsInFlight(steps, rank, dir + "/" + kInFlightDir);
  });
  return absl::OkStatus();
}

}  // namespace taopd
