// Generates the responses for training. LocalRolloutEngine uses the inference engine of this
// process, over the student's live weights or over a copy of earlier ones
// (trainer/pipeline/generation_weights.h); RemoteRolloutEngine (endpoints/) asks other processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/engine/engine.h"

namespace taopd {

// The policy_version of the student's live weights, which have no number.
inline constexpr int64_t kLiveWeights = -1;

struct RolloutRequest {
  std::vector<int32_t> prompt_ids;
  SamplingParams sampling;
  std::string source;  // the prompt's data set, copied to the rollout
  // The version of the weights that must generate the response: the number of steps after which the
  // student has them, or kLiveWeights.
  int64_t policy_version = kLiveWeights;
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
  std::string source;  // RolloutRequest::source
  // The version of the weights that generated the response, as the engine reports it. The receiver
  // of the rollout compares it with the requested version.
  int64_t policy_version = kLiveWeights;
  bool is_given = false;  // whether the response comes from RolloutRequest::given_ids
};

// Returns the rollout whose response is request.given_ids.
inline Rollout GivenRollout(RolloutRequest request) {
  Rollout rollout;
  rollout.prompt_ids = std::move(request.prompt_ids);
  rollout.response_ids = std::move(request.given_ids);
  rollout.behavior_log_probs.assign(rollout.response_ids.size(),
                                    std::numeric_limits<float>::quiet_NaN());
  rollout.finish = FinishReason::kStop;
  rollout.source = std::move(request.source);
  rollout.policy_version = request.policy_version;
  rollout.is_given = true;
  return rollout;
}

class RolloutEngine {
 public:
  // Receives the index of a request, and the rollout.
  using Done = std::function<void(int64_t index, absl::StatusOr<Rollout>)>;

  virtual ~RolloutEngine() = default;
  // Starts generating all responses and returns immediately. Calls done(i, rollout) once for each
  // request, in any order and on any thread. `done` must not block, because generation waits for
  // it; it may decode or grade a response. The weights must not change until every `done` has run.
  virtual void Generate(std::vector<RolloutRequest> requests, Done done) = 0;
  // Ends all unfinished requests soon, with CANCELLED. Only the thread that called Generate may
  // call it.
  virtual void CancelAll() {}
};

class LocalRolloutEngine final : public RolloutEngine {
 public:
  // `engine` must outlive this object. `policy_version`, if it is not null, returns the version of
  // the engine's current weights; the engine's thread calls it for each rollout.
  explicit LocalRolloutEngine(InferenceEngine* engine,
                              std::function<int64_t()> policy_version = nullptr)
      : engine_(engine), policy_version_(std::move(policy_version)) {}
  void Generate(std::vector<RolloutRequest> requests, Done done) override;
  void CancelAll() override;

 private:
  InferenceEngine* engine_;
  const std::function<int64_t()> policy_version_;
  // Requests since the engine was last without any, and how many of them are unfinished.
  std::vector<RequestHandle> handles_;
  const std::shared_ptr<std::atomic<int64_t>> num_open_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace taopd
