// The body of a request as a JSON object, and how a protocol reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "server/generation/generation_request.h"
#include "server/http/request/json_fields.h"
#include "server/serving/serving_state.h"

namespace taopd {

// The most memory that a parsed body may take, roughly. The largest list of token ids takes half.
inline constexpr int64_t kMaxBodyValueBytes = int64_t{256} << 20;

// Parses the body once and reads it. The fields of the route's table that `read` does not ask for
// are read first (FieldUse). Unknown fields are logged as unknown to `route`, if `read`
// returns no error. Any thread may call, in the client's turn (ReadBodyInTurn).
absl::Status ReadBody(const std::string& body, const std::string& route,
                      const std::function<absl::Status(JsonFields&)>& read);

// Does the same in the client's turn, for which it waits. Returns CANCELLED if the caller has
// gone by then, and DEADLINE_EXCEEDED if its deadline has passed.
absl::Status ReadBodyInTurn(const std::string& body, const Caller& caller, ServingState& state,
                            const std::string& route,
                            const std::function<absl::Status(JsonFields&)>& read);

// Returns a random id of 32 hexadecimal digits, like vLLM's.
std::string RandomRequestId();

}  // namespace taopd
