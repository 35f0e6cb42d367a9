// One server that generates rollouts with weights that the trainer gives it. RemoteRolloutEngine
// (remote_rollout_engine.h) asks several of them.
//
// Threads: several threads call Generate concurrently, up to the engine's limit per worker. One
// other thread calls Check and SetWeights. It calls SetWeights only while no Generate runs, but
// Check at any time, because one request can find the worker lost while others still wait for their
// answers. All calls block.
//
// Errors of all calls, by what the engine does about them:
//   UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNKNOWN
//                the worker is lost. Others are asked in its place, and Check is called from time
//                to time until it answers again. A request that is answered with INTERNAL, UNKNOWN
//                or DEADLINE_EXCEEDED again and again ends with that error, and one that is refused
//                with UNAVAILABLE for long enough with UNAVAILABLE.
//   ABORTED      (Generate) the worker does not have the requested weights: it has started again,
//                or someone else has given it others. SetWeights is called, then it is asked again.
//                A request that is answered with it again and again ends with FAILED_PRECONDITION.
//   CANCELLED    the call was stopped by its token.
//   DATA_LOSS    (SetWeights) the weights did not arrive as they were sent. The worker is lost.
//   DATA_LOSS    (Generate) the answer breaks the protocol. The worker is left out from then on.
//   everything else
//                Check and SetWeights: the worker can never be used and is left out for good; at
//                the start the run is refused. Generate: the request is at fault; the step fails.
// Messages do not repeat the worker's address; the engine adds it.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/engine/engine_request.h"
#include "common/engine/engine_weights.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// The needs of a run that a worker must meet.
struct RolloutNeeds {
  int64_t vocab_size = 0;     // rows of the student's output head
  int64_t max_model_len = 0;  // longest prompt plus longest response, in tokens
  std::string dtype;          // of the student's weights: "float32", "bfloat16"
  // The revision (WeightsRevision) of the base, with has_adapters.
  std::string base_revision;
  bool has_adapters = false;   // whether PolicyWeights::directory holds a PEFT adapter
  bool has_tied_head = false;  // ModelConfig::tie_word_embeddings
  std::vector<int32_t> eos_token_ids;
  SamplingParams sampling;  // of the rollouts, without a seed
};

// The student's own log-probs of a short sequence. They show whether a server has read the weights
// correctly.
struct WeightProbe {
  std::vector<int32_t> token_ids;  // [P], P >= 2
  std::vector<float> log_probs;    // [P - 1] of tokens 1 to P - 1 at temperature 1
};

// Weights of the student, written and complete.
struct PolicyWeights {
  // Names the weights: their step and a hash of their bytes. After a roll-back the same step has
  // other weights. ASCII letters, digits and '-', at most 128 characters.
  std::string version;
  int64_t step = 0;  // RolloutRequest::policy_version
  // A Hugging Face directory: config.json and safetensors, or a PEFT adapter. It stays while
  // SetWeights runs, and may be removed afterwards.
  std::string directory;
  std::vector<TensorSum> sums;  // of every tensor there
  WeightProbe probe;            // empty unless a worker needs it
};

// A generated response with the version of the weights that generated all of its tokens. The engine
// fills in the prompt, the source and the policy_version.
struct WorkerRollout : Rollout {
  std::string version;  // PolicyWeights::version, as the server reports it
};

class RolloutWorker {
 public:
  virtual ~RolloutWorker() = default;
  // The endpoint as the user wrote it.
  virtual const std::string& address() const = 0;
  // Returns whether SetWeights compares the server's log-probs with PolicyWeights::probe.
  virtual bool needs_probe() const { return false; }
  // Asks whether the server is up, takes weights, and can generate what the run needs. Called at
  // the start, and again before a lost worker is used again.
  virtual absl::Status Check(const RolloutNeeds& needs, const std::stop_token& stop) = 0;
  // Gives the server these weights. If it returns OK, the server has them, and every answer to a
  // later request is of this version or of one that was set after it. The call is cheap if the
  // server has these weights already.
  virtual absl::Status SetWeights(const PolicyWeights& weights, const std::stop_token& stop) = 0;
  // Generates the response to a request, which its seed determines. REQUIRES: SetWeights has
  // returned OK for `weights`, whose step is request.policy_version; request.given_ids is empty.
  virtual absl::StatusOr<WorkerRollout> Generate(const RolloutRequest& request,
                                                 const PolicyWeights& weights,
                                                 const std::stop_token& stop) = 0;
};

}  // namespace taopd
