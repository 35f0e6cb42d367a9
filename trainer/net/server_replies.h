// Errors and lists of models in the replies of vLLM, SGLang and servers like them.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "trainer/net/http_client.h"

namespace taopd {

// Returns the error of a reply other than 200, with the server's own words:
//   INVALID_ARGUMENT    any status below 500 except the following:
//   PERMISSION_DENIED   401, 403; says whether a key was sent and where it is read from
//   NOT_FOUND           404: the server has no such model or path
//   RESOURCE_EXHAUSTED  429
//   UNAVAILABLE         408, 502, 503, 504
//   INTERNAL            any other 5xx
absl::Status ErrorOfReply(const HttpReply& reply, const ClientCredentials& credentials);

// Returns whether the server may answer the same request later, by the error of an exchange or of
// ErrorOfReply: UNAVAILABLE, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED or INTERNAL.
bool IsTransient(const absl::Status& error);

// A longer Retry-After is shortened to this.
inline constexpr absl::Duration kMaxRetryAfter = absl::Seconds(60);

// A model that a server lists.
struct ListedModel {
  std::string id;
  int64_t max_model_len = 0;  // 0 if it is not told
};
// Finds `wanted`, or the first model if it is empty, in the reply to "GET /v1/models". Returns
// NOT_FOUND, with the names of the listed models, or DATA_LOSS for a reply of another shape.
absl::StatusOr<ListedModel> FindListedModel(const std::string& body, const std::string& wanted);

}  // namespace taopd
