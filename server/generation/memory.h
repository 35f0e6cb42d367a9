// The memory of a request's choices and of its answer, reserved before any work begins.
#pragma once

#include <cstdint>

#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

// Estimates, from above, of an answer's bytes.
struct AnswerBytes {
  int64_t whole = 0;     // of what is held until the end; limited together with the fields' copies
  int64_t messages = 0;  // of messages that wait if the client does not read
};

// Reserves the memory of the answer and of what each choice has a copy of. Any thread may call.
// Errors:
//   INVALID_ARGUMENT    the request is too large for any moment: the copies, the answer, or the
//                       prompts of all choices, which wait in the engine's queue together;
//   RESOURCE_EXHAUSTED  requests and answers take all the memory that they may take now.
absl::StatusOr<ByteBudget::Reservation> ReserveMemory(const GenerationRequest& request,
                                                      const AnswerBytes& answer,
                                                      const ServedModel& model,
                                                      const Caller& caller, ServingState* state);

}  // namespace taopd
