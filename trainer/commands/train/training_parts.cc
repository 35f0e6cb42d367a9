#include "trainer/commands/train/training_parts.h"

#include <algorithm>

#include "trainer/commands/train/plan/memory_plan.h"

namespace taopd {
namespace {

CheckpointedRunOptions MakeTrainingRunOptions(TrainConfig& config, ProcessGroup* group) {
  CheckpointedRunOptions options = MakeRunOptions(config, config.student.dtype, group);
  options.checkpoints.keep_every = config.trainer.keep_every;
  options.watched_metric = config.trainer.best_metric;
  options.lora = config.student.lora.Options(config.run.seed);
  options.keeps_average = KeepsAverage(config.teacher, config.teachers);
  options.max_pinned = MaxPinnedCheckpoints(config);
  options.num_published = MaxPublishedVersions(config, group->world_size());
  options.weights_dir = config.rollout.weights_dir;
  return options;
}

}  // namespace

ExitCode CodeOfFailedStep(const absl::Status& status) {
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) return kExitUnavailable;
  const bool is_of_data = absl::IsFailedPrecondition(status) || absl::IsDataLoss(status) ||
                          absl::IsInvalidArgument(status);
  if (is_of_data) return kExitData;
  return absl::IsResourceExhausted(status) ? kExitOutOfMemory : kExitInternal;
}

TrainingParts::TrainingParts(TrainConfig given, RunState* run_state, ProcessGroup* group)
    : config(std::move(given)),
      run_state(run_state),
      group(group),
      run(MakeTrainingRunOptions(config, group)),
      wall_time(start, absl::Seconds(config.trainer.max_wall_time_s)) {}

TeacherHealth TrainingParts::Health() const {
  const TeacherClientStats stats = teacher->stats();
  return {teacher_info.model_name, stats.waiting,   stats.requests, stats.retries,
          stats.failures,          stats.in_flight, stats.queued};
}

Liveness::Activity TrainingParts::CurrentActivity() const {
  if (run_state->is_paused()) return std::nullopt;
  const TeacherClientStats stats = teacher->stats();
  int64_t num_remote = remote.engine != nullptr ? remote.engine->stats().num_done : int64_t{0};
  absl::Time last_beat = engine->stats().last_step;
  if (evaluation_snapshot) {
    last_beat = std::max(last_beat, evaluation_snapshot->last_beat());
    num_remote += evaluation_snapshot->num_remote();
  }
  return {{run_state->num_progress(), num_remote, absl::ToUnixNanos(last_beat),
           static_cast<int64_t>(stats.requests), static_cast<int64_t>(stats.retries),
           static_cast<int64_t>(stats.failures), stats.in_flight, stats.queued}};
}

absl::Status TrainingParts::UndoStep(const TrainState& before) {
  state = before;
  TAOPD_RETURN_IF_ERROR(
      WithExitCode(kExitInternal, data.order->Restore(state.epoch, state.epoch_index)));
  return absl::OkStatus();
}

void TrainingParts::Trace(const char* name, absl::Time start) {
  if (context.timeline != nullptr) timeline.Add(TimelineTrack::kTrainer, name, start, absl::Now());
}

}  // namespace taopd
