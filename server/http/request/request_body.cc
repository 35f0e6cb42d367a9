#include "server/http/request/request_body.h"

#include <absl/strings/str_format.h>
#include <absl/time/clock.h>

#include <string_view>
#include <vector>

#include "common/base/random.h"
#include "common/io/jsonl.h"
#include "server/generation/request_fields.h"
#include "server/http/http_error.h"
#include "server/http/request/field_table.h"
#include "server/serving/excerpt.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

bool ChangesNothing(const ordered_json& value) {
  return value.empty() || value == ordered_json("") || value == ordered_json(0) ||
         value == ordered_json(false);
}

// Reads the fields that no protocol reads.
absl::Status ReadUnused(const std::vector<FieldDoc>& docs, JsonFields& fields) {
  for (const FieldDoc& doc : docs) {
    const ordered_json* value = doc.use == FieldUse::kRead ? nullptr : fields.Find(doc.name);
    if (value == nullptr) continue;
    const std::string_view type = doc.type;
    bool is_set = !ChangesNothing(*value);
    if (type == "boolean") {
      is_set = fields.Bool(doc.name).value_or(false);
    } else if (doc.use == FieldUse::kIgnored && type == "integer") {
      fields.ClampedInteger(doc.name);
    } else if (doc.use == FieldUse::kIgnored && type == "number") {
      fields.Number(doc.name);
    } else if (doc.use == FieldUse::kIgnored && type == "string") {
      fields.Text(doc.name);
    }
    if (doc.use == FieldUse::kRefused && is_set)
      return FieldError(doc.name, doc.name, " is not supported by this server.");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadBody(const std::string& body, const std::string& route,
                      const std::function<absl::Status(JsonFields&)>& read) {
  absl::StatusOr<ordered_json> json = ParseOrderedJson(body, "body", kMaxBodyValueBytes);
  if (!json.ok()) return BadBody(Excerpt(std::string(json.status().message())));
  if (!json->is_object()) return BadBody("the body must be a JSON object");
  JsonFields fields(*json);
  for (const RouteDoc& doc : RouteDocs()) {
    if (doc.path != route) continue;
    TAOPD_RETURN_IF_ERROR(ReadUnused(doc.fields, fields));
    if (doc.sampling_fields.empty()) continue;
    TAOPD_RETURN_IF_ERROR(ReadUnused(doc.sampling_fields, fields.Nested("sampling_params")));
  }
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

std::string RandomRequestId() { return absl::StrFormat("%016x%016x", FreshBits(), FreshBits()); }

}  // namespace taopd
