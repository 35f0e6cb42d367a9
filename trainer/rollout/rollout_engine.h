// Where responses come from. The local one wraps the inference engine with the student's live
// weights (no copy, no refit); one that reaches a server over the network fits behind the same
// seam.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/engine/engine.h"

namespace taopd {

struct RolloutRequest {
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
};

struct Rollout {
  std::vector<int32_t> prompt_ids;    // [P]
  std::vector<int32_t> response_ids;  // [R], R >= 1
  // [R] under the policy that sampled, at the sampling temperature, before top-p and top-k.
  std::vector<float> behavior_log_probs;
  // [R, sampling.num_log_probs] the most probable ids under the same distribution, best first.
  std::vector<int32_t> top_ids;
  FinishReason finish = FinishReason::kLength;
};

class RolloutEngine {
 public:
  virtual ~RolloutEngine() = default;
  // Generates all; `done(i, rollout)` runs once for each index in any order, on any thread, and
  // must not block. Returns at once. The weights must not change until every done has run.
  virtual void Generate(std::vector<RolloutRequest> requests,
                        std::function<void(int64_t index, absl::StatusOr<Rollout>)> done) = 0;
};

class LocalRolloutEngine final : public RolloutEngine {
 public:
  // `engine` outlives this.
  explicit LocalRolloutEngine(InferenceEngine* engine) : engine_(engine) {}
  void Generate(std::vector<RolloutRequest> requests,
                std::function<void(int64_t, absl::StatusOr<Rollout>)> done) override;

 private:
  InferenceEngine* engine_;
};

// Generate and wait for all; the first error ends it (after every request has come back).
absl::StatusOr<std::vector<Rollout>> GenerateAll(RolloutEngine* engine,
                                                 std::vector<RolloutRequest> requests);

}  // namespace taopd
