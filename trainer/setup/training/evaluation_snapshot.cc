#include "trainer/setup/training/evaluation_snapshot.h"

#include <utility>
#include <vector>

#include "common/engine/torch_engine.h"
#include "trainer/setup/engine_options.h"
#include "trainer/student/student.h"

namespace taopd {
namespace {

// Asks servers for responses of exactly the published weights.
class PublishedEngine final : public RolloutEngine {
 public:
  PublishedEngine(RemoteRolloutEngine* servers, const PublishedWeights* weights)
      : servers_(servers), weights_(weights) {}
  void Generate(std::vector<RolloutRequest> requests, Done done) override {
    for (RolloutRequest& request : requests) request.policy_version = weights_->version();
    servers_->Generate(std::move(requests), std::move(done));
  }
  void CancelAll() override { servers_->CancelAll(); }

 private:
  RemoteRolloutEngine* const servers_;
  const PublishedWeights* const weights_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvaluationSnapshot>> EvaluationSnapshot::Make(
    const TrainConfig& config, const Decoder* student, const InferenceEngine* rollouts) {
  std::unique_ptr<EvaluationSnapshot> snapshot(new EvaluationSnapshot(rollouts));
  const bool computes_here = config.rollout.eval_endpoints.empty();
  TAOPD_ASSIGN_OR_RETURN(snapshot->weights_, GenerationWeights::Make(student, computes_here));
  if (!computes_here || config.eval.measure != EvalMeasure::kAccuracy) return snapshot;
  TAOPD_ASSIGN_OR_RETURN(
      snapshot->engine_,
      MakeTorchEngine(
          snapshot->weights_->decoder(), MakeEvaluationEngineOptions(config), Clock::Real(),
          /*graphs=*/nullptr, [yielding = snapshot.get()] { return yielding->Yields(); }));
  snapshot->rollout_engine_ = std::make_unique<LocalRolloutEngine>(snapshot->engine_.get());
  return snapshot;
}

void EvaluationSnapshot::GenerateElsewhere(std::unique_ptr<RemoteRolloutEngine> servers,
                                           std::string directory) {
  servers_ = std::move(servers);
  published_ = std::make_unique<PublishedWeights>(decoder(), servers_.get(), std::move(directory));
  rollout_engine_ = std::make_unique<PublishedEngine>(servers_.get(), published_.get());
}

void EvaluationSnapshot::Take(int64_t step) {
  yields_.store(true);
  weights_->Take(step);
  if (published_ != nullptr) published_->Take(step);
}

absl::Status EvaluationSnapshot::Load(int64_t step, const std::string& model_dir) {
  yields_.store(true);
  TAOPD_RETURN_IF_ERROR(ReloadWeights(model_dir, decoder()));
  weights_->PrepareWritten(step);
  if (published_ != nullptr) published_->Take(step);
  return absl::OkStatus();
}

bool EvaluationSnapshot::Yields() const {
  if (!yields_.load()) return false;
  const EngineStats stats = rollouts_->stats();
  return stats.num_waiting + stats.num_running > 0;
}

}  // namespace taopd
