#include "server/http/generation/request_body.h"

#include <absl/time/clock.h>

#include "common/base/random.h"
#include "common/io/jsonl.h"
#include "server/http/http_error.h"
#include "server/http/json_fields.h"
#include "server/serving/excerpt.h"

namespace taopd {

namespace {

template <typename Json>
absl::StatusOr<Json> CheckBody(absl::StatusOr<Json> json) {
  if (!json.ok()) return BadBody(Excerpt(std::string(json.status().message())));
  if (!json->is_object()) return BadBody("the body must be a JSON object");
  return json;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseBody(const std::string& body) {
  return CheckBody(ParseJson(body, "body", kMaxBodyValueBytes));
}

absl::StatusOr<nlohmann::ordered_json> ParseOrderedBody(const std::string& body) {
  return CheckBody(ParseOrderedJson(body, "body", kMaxBodyValueBytes));
}

absl::Status CheckWaiting(const Caller& caller) {
  if (caller.is_gone && caller.is_gone()) return absl::CancelledError("the client has gone");
  if (absl::Now() > caller.deadline)
    return absl::DeadlineExceededError("the deadline passed before the request was read");
  return absl::OkStatus();
}

absl::Status ReadFieldsInTurn(const std::string& body, const Caller& caller, ServingState& state,
                              const std::string& route,
                              const std::function<absl::Status(JsonFields&)>& read) {
  return ParseInTurn(body, caller, state, [&]() -> absl::Status {
    TAOPD_ASSIGN_OR_RETURN(const nlohmann::json json, ParseBody(body));
    JsonFields fields(json);
    TAOPD_RETURN_IF_ERROR(read(fields));
    fields.LogUnknown(route);
    return absl::OkStatus();
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
