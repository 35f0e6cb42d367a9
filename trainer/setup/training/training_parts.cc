#include "trainer/setup/training/training_parts.h"

#include <algorithm>

#include "trainer/setup/plan/memory_plan.h"

namespace taopd {
namespace {

CheckpointedRunOptions MakeTrainingRunOptions(TrainConfig& config, ProcessGroup* group) {
  CheckpointedRunOptions options = MakeRunOptions(config, config.student.dtype, group);
  options.checkpoints.keep_every = config.trainer.keep_every;
  options.watched_metric = config.trainer.best_metric;
  options.lora = config.student.lora.Options(config.run.seed);
  if (options.lora) options.lora->config.base_model = config.student.model;
  options.keeps_average = KeepsAverage(config.teacher, config.teachers);
  options.max_pinned = MaxPinnedCheckpoints(config);
  options.num_published = MaxPublishedVersions(config, group->world_size());
  options.weights_dir = config.rollout.weights_dir;
  return options;
}

}  // namespace

std::vector<const PromptRecord*> TrainingData::NextBatch(int64_t size) {
  std::vector<const PromptRecord*> batch;
  for (const int64_t index : order->Next(size)) batch.push_back(&prompts[index]);
  return batch;
}

TeacherHealth TeacherParts::Health() const {
  const TeacherClientStats stats = client->stats();
  return {info.model_name, stats.waiting,   stats.requests, stats.retries,
          stats.failures,  stats.in_flight, stats.queued};
}

TrainingParts::TrainingParts(TrainConfig given, RunControl* run_control, ProcessGroup* group)
    : config(std::move(given)),
      run_control(run_control),
      group(group),
      run(MakeTrainingRunOptions(config, group)),
      trace(config.trainer.trace_steps,
            group->is_root() ? run.run_dir() + "/trace.json" : std::string()) {}

Liveness::Activity TrainingParts::CurrentActivity() const {
  if (run_control->is_paused()) return std::nullopt;
  const TeacherClientStats stats = teacher.client->stats();
  int64_t num_remote = rollouts.servers != nullptr ? rollouts.servers->stats().num_done : 0;
  absl::Time last_beat = rollouts.engine->stats().last_step;
  if (const EvaluationSnapshot* const snapshot = rollouts.evaluation_snapshot.get()) {
    last_beat = std::max(last_beat, snapshot->last_beat());
    num_remote += snapshot->num_remote();
  }
  return {{run_control->num_progress(), num_remote, absl::ToUnixNanos(last_beat),
           static_cast<int64_t>(stats.requests), static_cast<int64_t>(stats.retries),
           static_cast<int64_t>(stats.failures), stats.in_flight, stats.queued}};
}

}  // namespace taopd
