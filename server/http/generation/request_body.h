// The body of a request as a JSON object.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "server/generation/generation_request.h"
#include "server/http/http_error.h"
#include "server/serving/serving_state.h"

namespace taopd {

class JsonFields;

// The most memory that a parsed body may take, roughly. The largest list of token ids takes half.
inline constexpr int64_t kMaxBodyValueBytes = int64_t{256} << 20;

// Parses the body and calls `read` with it, whose error it returns; or returns the error of a body
// that is not a JSON object. Any thread may call, in the client's turn (ParseInTurn).
std::optional<HttpError> ReadBody(
    const std::string& body,
    const std::function<std::optional<HttpError>(const nlohmann::json&)>& read);

// 499 if the caller has gone, 504 if its deadline has passed.
std::optional<HttpError> ErrorOfAbandoned(const Caller& caller);

// Waits for the client's turn and returns what `parse` does, or an HttpError if nobody waits for
// the answer any more.
template <typename Parse>
auto ParseInTurn(const std::string& body, const Caller& caller, ServingState& state,
                 const Parse& parse) -> decltype(parse()) {
  const ParseTurns::Turn turn = state.parse_turns().Wait(caller.client, body.size());
  if (auto error = ErrorOfAbandoned(caller)) return *std::move(error);
  return parse();
}

// Both, for a route whose body is read field by field: fields that `read` leaves are logged as
// unknown to `route`, if it returns no error.
std::optional<HttpError> ReadFieldsInTurn(
    const std::string& body, const Caller& caller, ServingState& state, const std::string& route,
    const std::function<std::optional<HttpError>(JsonFields&)>& read);

// Returns a random id of 32 hexadecimal digits, like vLLM's.
std::string RandomRequestId();

}  // namespace taopd
