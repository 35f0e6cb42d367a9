// Generates the responses for training. LocalRolloutEngine uses the inference engine of this
// process with the student's live weights, so no weights are copied after an update. A remote
// engine would implement the same interface.
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
  std::string source;  // the prompt's data set, copied to the rollout
  // If not empty, nothing is generated: these ids are the response.
  std::vector<int32_t> given_ids;
};

// P prompt tokens and R response tokens.
struct Rollout {
  std::vector<int32_t> prompt_ids;    // [P]
  std::vector<int32_t> response_ids;  // [R], R >= 1
  // [R] log-probs of the response tokens under the policy that sampled them, at the student's
  // sampling temperature, before top-p and top-k. NaN for a given response.
  std::vector<float> behavior_log_probs;
  // [R, sampling.num_log_probs] ids of the most probable tokens under that distribution, in
  // descending order of probability.
  std::vector<int32_t> top_ids;
  FinishReason finish = FinishReason::kLength;
  std::string source;     // RolloutRequest::source
  bool is_given = false;  // whether the response comes from RolloutRequest::given_ids
};

class RolloutEngine {
 public:
  virtual ~RolloutEngine() = default;
  // Starts generating all responses and returns immediately. Calls done(i, rollout) once for each
  // request, in any order and on any thread; `done` must not block. The weights must not change
  // until every `done` has run.
  virtual void Generate(std::vector<RolloutRequest> requests,
                        std::function<void(int64_t index, absl::StatusOr<Rollout>)> done) = 0;
  // Ends the unfinished requests of the latest Generate soon, with CANCELLED. Only the thread that
  // called Generate may call it.
  virtual void CancelAll() {}
};

class LocalRolloutEngine final : public RolloutEngine {
 public:
  // `engine` must outlive this object.
  explicit LocalRolloutEngine(InferenceEngine* engine) : engine_(engine) {}
  void Generate(std::vector<RolloutRequest> requests,
                std::function<void(int64_t, absl::StatusOr<Rollout>)> done) override;
  void CancelAll() override;

 private:
  InferenceEngine* engine_;
  std::vector<RequestHandle> handles_;  // requests of the latest Generate
};

}  // namespace taopd
