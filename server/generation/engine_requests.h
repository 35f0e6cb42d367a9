// Turns a request of any protocol into the engine's requests, one per choice, and reserves their
// memory before any work begins.
#pragma once

#include <cstdint>
#include <vector>

#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Returns the engine's requests of all choices, in their order. If `scores`, the first choice of
// each prompt scores it. A choice with nothing to compute has neither score nor sampling.
std::vector<InferenceRequest> EngineRequests(const GenerationRequest& request, const Caller& caller,
                                             const ServedModel& model, bool scores);

// Checks the fields of all choices as the engine does, and returns its errors.
absl::Status ValidateChoices(const GenerationRequest& request, const EngineLimits& limits);

// The most bytes of an answer, together with the copies of the fields that it is made from.
inline constexpr int64_t kMaxAnswerBytes = int64_t{256} << 20;

// Upper estimates of the bytes of an answer.
struct AnswerBytes {
  int64_t whole = 0;  // held until the end; limited together with the copies of the fields
  int64_t waiting_messages = 0;  // messages that wait while the client does not read
};

// Reserves the memory of the answer and of the fields that each choice copies. Thread-safe. Errors:
//   INVALID_ARGUMENT    the request could never be served: the copies, the answer or the prompts of
//                       all choices, which wait in the engine's queue together, are too large;
//   RESOURCE_EXHAUSTED  requests and answers already take all the memory that they may.
absl::StatusOr<ByteBudget::Reservation> ReserveMemory(const GenerationRequest& request,
                                                      const AnswerBytes& answer,
                                                      const ServedModel& model,
                                                      const Caller& caller, ServingState* state);

}  // namespace taopd
