// The body of a request as a JSON object.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/generation/generation_request.h"
#include "server/serving/serving_state.h"

namespace taopd {

class JsonFields;

// The most memory that a parsed body may take, roughly. The largest list of token ids takes half.
inline constexpr int64_t kMaxBodyValueBytes = int64_t{256} << 20;

// The body as a JSON object. Any thread may call, in the client's turn (ParseInTurn).
absl::StatusOr<nlohmann::json> ParseBody(const std::string& body);
// Does the same, with the keys of objects in the order of the text.
absl::StatusOr<nlohmann::ordered_json> ParseOrderedBody(const std::string& body);

// CANCELLED if the caller has gone, DEADLINE_EXCEEDED if its deadline has passed.
absl::Status CheckWaiting(const Caller& caller);

// Waits for the client's turn and returns what `parse` does, or an error if nobody waits for the
// answer any more.
template <typename Parse>
auto ParseInTurn(const std::string& body, const Caller& caller, ServingState& state,
                 const Parse& parse) -> decltype(parse()) {
  const ParseTurns::Turn turn = state.parse_turns().Wait(caller.client, body.size());
  TAOPD_RETURN_IF_ERROR(CheckWaiting(caller));
  return parse();
}

// Both, for a route whose body is read field by field: fields that `read` leaves are logged as
// unknown to `route`, if it returns no error.
absl::Status ReadFieldsInTurn(const std::string& body, const Caller& caller, ServingState& state,
                              const std::string& route,
                              const std::function<absl::Status(JsonFields&)>& read);

// Returns a random id of 32 hexadecimal digits, like vLLM's.
std::string RandomRequestId();

}  // namespace taopd
