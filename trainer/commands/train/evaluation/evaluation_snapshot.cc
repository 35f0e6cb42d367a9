#include "trainer/commands/train/evaluation/evaluation_snapshot.h"

#include <utility>

#include "common/engine/torch_engine.h"
#include "trainer/commands/configured_parts.h"
#include "trainer/student/student.h"

namespace taopd {

absl::StatusOr<std::unique_ptr<EvaluationSnapshot>> EvaluationSnapshot::Make(
    const TrainConfig& config, const Decoder* student, const InferenceEngine* rollouts) {
  std::unique_ptr<EvaluationSnapshot> snapshot(new EvaluationSnapshot(rollouts));
  TAOPD_ASSIGN_OR_RETURN(snapshot->weights_, GenerationWeights::Make(student));
  if (config.eval.measure != EvalMeasure::kAccuracy) return snapshot;
  TAOPD_ASSIGN_OR_RETURN(
      snapshot->engine_,
      MakeTorchEngine(snapshot->weights_->decoder(), EvaluationEngineOptions(config), Clock::Real(),
                      /*graphs=*/nullptr,
                      [yielding = snapshot.get()] { return yielding->Yields(); }));
  snapshot->rollout_engine_.emplace(snapshot->engine_.get());
  return snapshot;
}

void EvaluationSnapshot::Take(int64_t step) {
  yields_.store(true);
  weights_->Take(step);
}

absl::Status EvaluationSnapshot::Load(int64_t step, const std::string& model_dir) {
  yields_.store(true);
  TAOPD_RETURN_IF_ERROR(ReloadWeights(model_dir, decoder()));
  weights_->Written(step);
  return absl::OkStatus();
}

bool EvaluationSnapshot::Yields() const {
  if (!yields_.load()) return false;
  const EngineStats stats = rollouts_->stats();
  return stats.num_waiting + stats.num_running > 0;
}

absl::Time EvaluationSnapshot::last_beat() const {
  return engine_ == nullptr ? absl::InfinitePast() : engine_->stats().last_step;
}

}  // namespace taopd
