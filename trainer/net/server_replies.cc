#include "trainer/net/server_replies.h"

#include <nlohmann/json.hpp>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

// Returns the server's own words, in any of the shapes of its errors, or the start of the body.
std::string ServersMessage(const std::string& body) {
  const auto value = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) {
    for (const char* key : {"error", "message", "detail"}) {
      const auto found = value.find(key);
      if (found == value.end()) continue;
      if (found->is_string()) return found->get<std::string>().substr(0, 500);
      if (found->is_object() && found->contains("message") && found->at("message").is_string()) {
        return found->at("message").get<std::string>().substr(0, 500);
      }
    }
  }
  return body.substr(0, 200);
}

std::string DescribeKey(const ClientCredentials& credentials) {
  const std::string variable =
      credentials.api_key_env.empty()
          ? ""
          : "; it is read from the environment variable " + credentials.api_key_env;
  return Concat(credentials.api_key.empty() ? " (no" : " (an", " API key was sent", variable, ")");
}

}  // namespace

absl::Status ErrorOfReply(const HttpReply& reply, const ClientCredentials& credentials) {
  const std::string message = Concat("HTTP ", reply.status, ": ", ServersMessage(reply.body));
  switch (reply.status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(message + DescribeKey(credentials));
    case 404:
      return NotFound(message);
    case 429:
      return ResourceExhausted(message);
    case 408:
    case 502:
    case 503:
    case 504:
      return Unavailable(message);
    default:
      return reply.status >= 500 ? Internal(message) : InvalidArgument(message);
  }
}

bool IsTransient(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error) ||
         absl::IsResourceExhausted(error) || absl::IsInternal(error);
}

absl::StatusOr<ListedModel> FindListedModel(const std::string& body, const std::string& wanted) {
  const auto reply = ParseJson(body, "the list of models");
  if (!reply.ok()) return DataLoss(reply.status().message());
  if (!reply->is_object() || !reply->contains("data") || !reply->at("data").is_array()) {
    return DataLoss("the list of models has no data");
  }
  std::string known;
  for (const nlohmann::json& entry : reply->at("data")) {
    if (!entry.is_object() || !entry.contains("id") || !entry.at("id").is_string()) {
      return DataLoss("the list of models has an entry without an id");
    }
    ListedModel model;
    model.id = entry.at("id").get<std::string>();
    if (!wanted.empty() && model.id != wanted) {
      known += (known.empty() ? "\"" : ", \"") + model.id + "\"";
      continue;
    }
    const auto length = entry.find("max_model_len");
    if (length != entry.end() && length->is_number_integer()) {
      model.max_model_len = length->get<int64_t>();
      if (model.max_model_len < 2) {
        return DataLoss("the model's max_model_len ", model.max_model_len, " is below 2");
      }
    }
    return model;
  }
  if (wanted.empty() || known.empty()) return NotFound("the server lists no model");
  return NotFound("the server has no model \"", wanted, "\"; it has ", known);
}

}  // namespace taopd
