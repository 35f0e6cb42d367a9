#include "server/http/generation/request_body.h"

#include <absl/time/clock.h>

#include "common/base/random.h"
#include "common/io/jsonl.h"
#include "server/http/json_fields.h"
#include "server/serving/excerpt.h"

namespace taopd {

std::optional<HttpError> ReadBody(
    const std::string& body,
    const std::function<std::optional<HttpError>(const nlohmann::json&)>& read) {
  const absl::StatusOr<nlohmann::json> json = ParseJson(body, "body", kMaxBodyValueBytes);
  if (!json.ok()) {
    return HttpError{
        400, "Bad Request", "body",
        Concat("1 validation error:\n  ", Excerpt(std::string(json.status().message())))};
  }
  if (!json->is_object()) {
    return HttpError{400, "Bad Request", "body",
                     "1 validation error:\n  the body must be a JSON object"};
  }
  return read(*json);
}

std::optional<HttpError> ErrorOfAbandoned(const Caller& caller) {
  if (caller.is_gone && caller.is_gone())
    return FromStatus(absl::CancelledError("the client has gone"));
  if (absl::Now() > caller.deadline) {
    return FromStatus(
        absl::DeadlineExceededError("the deadline passed before the request was read"));
  }
  return std::nullopt;
}

std::optional<HttpError> ReadFieldsInTurn(
    const std::string& body, const Caller& caller, ServingState& state, const std::string& route,
    const std::function<std::optional<HttpError>(JsonFields&)>& read) {
  return ParseInTurn(body, caller, state, [&] {
    return ReadBody(body, [&](const nlohmann::json& json) {
      JsonFields fields(json);
      auto error = read(fields);
      if (!error) fields.LogUnknown(route);
      return error;
    });
  });
}

std::string RandomRequestId() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id;
  for (int word = 0; word < 2; ++word) {
    uint64_t bits = FreshBits();
    for (int digit = 0; digit < 16; ++digit, bits >>= 4) id += kHex[bits & 15];
  }
  return id;
}

}  // namespace taopd
