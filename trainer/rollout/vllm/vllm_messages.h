// The messages of the routes of vLLM that rollouts need, as vLLM 0.32 has them:
//
//   GET  /server_info?config_format=json   the server's settings
//   POST /inference/v1/generate            a response to token ids, or the log-probs of token ids
//   POST /collective_rpc                   {"method": "reload_weights", ...}
//   GET  /weight_info                      {"weight_version": "..."}
//
// Replies come from the network. The parsers return DATA_LOSS, naming the member that is missing or
// wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/rollout/endpoints/rollout_worker.h"

namespace taopd {

// The facts about the server in /server_info.
struct VllmServerInfo {
  std::string logprobs_mode;  // which log-probs it reports: raw_logprobs, processed_logprobs, ...
  int64_t max_logprobs = 0;   // most alternatives per token; -1 if there is no limit
  int64_t max_model_len = 0;
  std::string dtype;         // without "torch.": float32, bfloat16
  std::string load_format;   // "dummy": it has started with random weights
  bool is_on_cpu = false;    // its device
  bool unties_head = false;  // whether --hf-overrides gives a tied model a head of its own
};

absl::StatusOr<VllmServerInfo> ParseVllmServerInfo(const std::string& body);

// Returns INVALID_ARGUMENT, naming the trainer's setting and the server's flag, if such a server
// cannot generate the rollouts, or cannot report log-probs at the sampling temperature before
// truncation (Rollout::behavior_log_probs).
absl::Status CheckVllmServesRollouts(const VllmServerInfo& info, const RolloutNeeds& needs);

// Returns the limit on the mean difference of the probe's log-probs, for computations in these
// types. It is about a hundred times the difference between two correct implementations.
double VllmProbeTolerance(const std::string& our_dtype, const std::string& server_dtype);

// Returns the body of a request to generate. Clears the highest bit of the seed, because vLLM takes
// seeds of 63 bits. The sequence ends with one of needs.eos_token_ids and no other token.
std::string VllmGenerateBody(const RolloutRequest& request, const RolloutNeeds& needs,
                             const std::string& model);

// Reads the reply to VllmGenerateBody. Returns ABORTED if the server has dropped the sequence, or
// if two versions of the weights generated its tokens.
absl::StatusOr<WorkerRollout> ParseVllmRollout(const std::string& body,
                                               const RolloutRequest& request,
                                               const RolloutNeeds& needs);

// Returns the body of a request for the log-probs of token_ids[1] and later at temperature 1.
std::string VllmProbeBody(const std::vector<int32_t>& token_ids, const std::string& model);
// Reads the reply to VllmProbeBody: [P - 1] log-probs.
absl::StatusOr<std::vector<float>> ParseVllmProbe(const std::string& body,
                                                  const std::vector<int32_t>& token_ids);

// Returns the body of the call that loads the weights of a directory.
std::string VllmReloadBody(const std::string& directory);
// Returns the body of the call that lets a server with --load-format dummy load weights.
std::string VllmLoadFormatBody();

// Returns the text member `key` of a JSON object.
absl::StatusOr<std::string> ParseVllmText(const std::string& body, const std::string& key);

}  // namespace taopd
