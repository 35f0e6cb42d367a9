// vllm.grpc.engine (proto/vllm/engine.proto): its requests are those of vllm.Inference in other
// words, and its answers are made from that service's. Pure functions, any thread.
#pragma once

#include <optional>
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

// The functions below make the parts of an answer to a request with these sampling_params.

// The prompt's log-probs; there is no `score` for a prompt of one token.
vllm::grpc::engine::InputLogProbs ToInputLogProbs(const std::vector<int32_t>& token_ids,
                                                  const vllm::grpc::engine::SamplingParams& params,
                                                  const std::optional<ScoreRows>& score);
// A message with a chunk.
vllm::grpc::engine::GenerateResponse ToChunk(const vllm::SequenceOutput& output,
                                             const vllm::grpc::engine::SamplingParams& params,
                                             size_t index, size_t num_prompt_tokens);
// A message with the complete answer. REQUIRES: `output` has the finish_info.
vllm::grpc::engine::GenerateResponse ToComplete(const vllm::SequenceOutput& output,
                                                const vllm::grpc::engine::SamplingParams& params,
                                                size_t index, size_t num_prompt_tokens);

vllm::grpc::engine::GetModelInfoResponse ToModelInfo(const ServedModel& model);

}  // namespace taopd
