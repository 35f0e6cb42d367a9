// vllm.grpc.engine (proto/vllm/engine.proto): its requests are those of vllm.Inference in other
// words, and its answers are made from that service's. Pure functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "proto/vllm/engine.pb.h"
#include "proto/vllm/inference.pb.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The request of one sequence, for AdmitInference, which judges its values and reads the rest of
// sampling_params itself. Returns INVALID_ARGUMENT, naming the field, for what this interface
// alone can ask for and the server does not have.
absl::StatusOr<vllm::GenerateRequest> ToVllmGenerateRequest(
    const vllm::grpc::engine::GenerateRequest& request);

// The log-probs that the messages of an answer contain.
struct EngineAnswerOptions {
  bool logprobs = false;
  bool top_logprobs = false;
  bool input_logprobs = false;
  bool input_top_logprobs = false;

  static EngineAnswerOptions Of(const vllm::grpc::engine::SamplingParams& sampling);
};

// The prompt's log-probs; `score` is null for a prompt of one token.
vllm::grpc::engine::InputLogProbs ToInputLogProbs(const std::vector<int32_t>& token_ids,
                                                  const EngineAnswerOptions& options,
                                                  const ScoreRows* score);

vllm::grpc::engine::GenerateStreamChunk ToChunk(const vllm::SequenceOutput& output,
                                                const EngineAnswerOptions& options, size_t index,
                                                size_t num_prompt_tokens);
// REQUIRES: `output` has the finish_info.
vllm::grpc::engine::GenerateComplete ToComplete(const vllm::SequenceOutput& output,
                                                const EngineAnswerOptions& options, size_t index,
                                                size_t num_prompt_tokens);

vllm::grpc::engine::GetModelInfoResponse ToModelInfo(const ServedModel& model);

}  // namespace taopd
