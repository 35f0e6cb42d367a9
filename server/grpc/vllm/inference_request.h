// Requests of vllm.Inference (proto/vllm/inference.proto): from the wire to the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "proto/vllm/inference.pb.h"
#include "server/serving/serving_state.h"

namespace taopd {

// What the answer holds.
struct InferenceAnswerOptions {
  bool prompt_ids = false;
  bool prompt_logprobs = false;
  bool text = true;
  bool skip_special_tokens = true;
  bool ids = false;
  bool logprobs = false;
  bool candidates = false;
  std::vector<std::string> stop_strings;
  bool include_stop_strings = false;
};

// An accepted request. `request` lacks its callbacks.
struct AdmittedInference {
  std::shared_ptr<const ServedModel> model;
  InferenceRequest request;
  InferenceAnswerOptions options;
  std::optional<GrammarSpec> grammar;               // StartRun compiles it
  const char* grammar_field = "structured_output";  // for messages
  ByteBudget::Reservation answer_memory;
};

// `num_sequences` of the same request will run; memory is reserved for the fields and
// the answers of all.
// Thread-safe. Errors:
//   UNAVAILABLE          the model is loading or the server is draining;
//   NOT_FOUND            another model is asked for;
//   INVALID_ARGUMENT     a field is out of range or not supported; the text names it;
//   FAILED_PRECONDITION  the server only scores;
//   RESOURCE_EXHAUSTED   requests and answers take all the memory that they may take together.
absl::StatusOr<AdmittedInference> AdmitInference(const vllm::GenerateRequest& request,
                                                 absl::Time deadline, const std::string& client,
                                                 ServingState& state, int64_t num_sequences = 1);

}  // namespace taopd
