// The model of an evaluation beside training: a copy of the student's weights and, if it generates,
// an engine over them.
//
// The engine gives way to rollouts: it begins no step while the rollout engine has work. Rollouts
// are delayed by at most one of its steps. Training does not wait, but shares the device. With
// rollout.eval_endpoints, servers get the weights of each evaluation and generate instead.
//
// Memory: the weights, their packed copy unless servers generate, and a KV pool of at most
// eval.kv_cache_gb while an evaluation runs (model_copy_lines.cc).
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/engine/engine.h"
#include "trainer/config/train_config.h"
#include "trainer/pipeline/generation_weights.h"
#include "trainer/pipeline/published_weights.h"
#include "trainer/rollout/endpoints/remote_rollout_engine.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Used by the training thread, and by an evaluation from Take or Load until it ends.
class EvaluationSnapshot {
 public:
  // `student` and `rollouts`, the engine to which evaluations give way, must outlive the object.
  // Returns the errors of GenerationWeights::Make and MakeTorchEngine.
  static absl::StatusOr<std::unique_ptr<EvaluationSnapshot>> Make(const TrainConfig& config,
                                                                  const Decoder* student,
                                                                  const InferenceEngine* rollouts);

  // Lets servers generate from now on, and publishes their weights in `directory`.
  void GenerateElsewhere(std::unique_ptr<RemoteRolloutEngine> servers, std::string directory);

  // Copies the student's current weights, which are those after `step` steps. REQUIRES (also for
  // Load): no evaluation is running.
  void Take(int64_t step);
  // Reads the weights after `step` steps from the directory of a checkpoint's model.
  absl::Status Load(int64_t step, const std::string& model_dir);
  // Lets the requests of a cancelled evaluation end even while there are rollouts, until the next
  // Take or Load.
  void StopYielding() { yields_.store(false); }

  // Returns whether an evaluation should wait for rollouts. Any thread may call it.
  bool Yields() const;
  Decoder* decoder() { return weights_->decoder().get(); }
  // Null if evaluations generate nothing (measure kl).
  RolloutEngine* rollout_engine() { return rollout_engine_.get(); }
  // The time of the engine's last heartbeat. Any thread may call it.
  absl::Time last_beat() const {
    return engine_ == nullptr ? absl::InfinitePast() : engine_->stats().last_step;
  }
  // The number of responses of servers. Any thread may call it.
  int64_t num_remote() const { return servers_ == nullptr ? 0 : servers_->stats().num_done; }

 private:
  explicit EvaluationSnapshot(const InferenceEngine* rollouts) : rollouts_(rollouts) {}

  const InferenceEngine* const rollouts_;
  std::atomic<bool> yields_{true};
  std::unique_ptr<GenerationWeights> weights_;
  std::unique_ptr<InferenceEngine> engine_;
  // With GenerateElsewhere:
  std::unique_ptr<RemoteRolloutEngine> servers_;
  std::unique_ptr<PublishedWeights> published_;
  std::unique_ptr<RolloutEngine> rollout_engine_;  // over engine_ or servers_
};

}  // namespace taopd
