#include "server/http/request/request_body.h"

#include <absl/time/clock.h>

#include "common/base/random.h"
#include "common/io/jsonl.h"
#include "server/http/http_error.h"
#include "server/serving/excerpt.h"

namespace taopd {

absl::Status ReadBody(const std::string& body, const std::string& route,
                      const std::function<absl::Status(JsonFields&)>& read) {
  absl::StatusOr<nlohmann::ordered_json> json = ParseOrderedJson(body, "body", kMaxBodyValueBytes);
  if (!json.ok()) return BadBody(Excerpt(std::string(json.status().message())));
  if (!json->is_object()) return BadBody("the body must be a JSON object");
  JsonFields fields(*json);
  TAOPD_RETURN_IF_ERROR(read(fields));
  fields.LogUnknown(route);
  return absl::OkStatus();
}

absl::Status ReadBodyInTurn(const std::string& body, const Caller& caller, ServingState& state,
                            const std::string& route,
                            const std::function<absl::Status(JsonFields&)>& read) {
  const ParseTurns::Turn turn = state.parse_turns().Wait(caller.client, body.size());
  if (caller.is_gone && caller.is_gone()) return absl::CancelledError("the client has gone");
  if (absl::Now() > caller.deadline)
    return absl::DeadlineExceededError("the deadline passed before the request was read");
  return ReadBody(body, route, read);
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
