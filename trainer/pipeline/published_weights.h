// Publishes the student's weights to the workers of a RemoteRolloutEngine. Each version gets a
// directory of its own, with the checksum of each tensor and, if a worker needs them, the student's
// own log-probs of a short probe.
//
// A version's directory is removed when no worker needs it any more; at the end none is left. A
// version that is published again gets another directory. A directory that a killed run has left is
// removed at the next start.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/model/decoder.h"
#include "trainer/pipeline/rollout_weights.h"
#include "trainer/rollout/endpoints/remote_rollout_engine.h"

namespace taopd {

class PublishedWeights final : public RolloutWeights {
 public:
  // `directory` belongs to the object, which removes its contents. `student` and `engine` must
  // outlive the object. Writes nothing yet.
  PublishedWeights(Decoder* student, RemoteRolloutEngine* engine, std::string directory);
  ~PublishedWeights() override;

  // Writes the weights and gives them, or the error, to the engine. The error of a full disk is
  // ABORTED (kExitStorage), because RESOURCE_EXHAUSTED stands for the memory of a step.
  void Take(int64_t version) override;
  int64_t version() const override { return version_.load(); }

 private:
  absl::StatusOr<std::shared_ptr<const PolicyWeights>> Publish(int64_t step);

  Decoder* const student_;
  RemoteRolloutEngine* const engine_;
  const std::string directory_;
  const bool had_parent_;  // whether the parent of the directory existed
  std::atomic<int64_t> version_{-1};
  int64_t num_published_ = 0;
};

// Returns the student's log-probs of a fixed sequence. REQUIRES: no other thread uses the decoder's
// parameters.
WeightProbe MakeWeightProbe(Decoder* student);

}  // namespace taopd
