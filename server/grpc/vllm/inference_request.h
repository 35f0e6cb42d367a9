// Converts requests of vllm.Inference (proto/vllm/inference.proto) for the engine.
#pragma once

#include <memory>

#include "proto/vllm/engine.pb.h"
#include "proto/vllm/inference.pb.h"
#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The optional parts of an answer that GenerationRequest has no field for.
struct InferenceAnswerOptions {
  bool prompt_ids = false;
  bool text = true;
  bool ids = false;
  bool logprobs = false;
  bool candidates = false;
};

// An accepted request. StartRun compiles its grammar.
struct AdmittedInference {
  std::shared_ptr<const ServedModel> model;
  std::shared_ptr<GenerationRequest> request;
  Caller caller;
  InferenceAnswerOptions options;
  ByteBudget::Reservation answer_memory;
};

// Thread-safe. Memory is reserved for the fields and the answers of all sequences. Errors:
//   UNAVAILABLE          no work is accepted (ServingState::Admit);
//   NOT_FOUND            another model is asked for;
//   INVALID_ARGUMENT     a field is out of range or not supported; the text names it;
//   FAILED_PRECONDITION  the server only scores;
//   RESOURCE_EXHAUSTED   requests and answers take all the memory that they may take together, or
//                        those of this client their share.
// `gateway` is null except for a request of vllm.grpc.engine. Its constraint replaces the one in
// `request`, its sampling numbers are read after those in `request`, and n and
// truncate_prompt_tokens come from it as well. Unless the answer `streams`, all of a sequence is
// one message.
absl::StatusOr<AdmittedInference> AdmitInference(
    const vllm::GenerateRequest& request, bool streams, const Caller& caller, ServingState& state,
    const vllm::grpc::engine::SamplingParams* gateway = nullptr);

// Returns INVALID_ARGUMENT, naming `what` as not supported, if `is_set`.
absl::Status RefuseIf(bool is_set, const char* what);

}  // namespace taopd
