// Errors in vLLM's shape: {"error":{"message","type","param","code"}}.
#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"

namespace taopd {

struct HttpError {
  int status = 400;
  std::string type = "BadRequestError";
  std::optional<std::string> param;
  std::string message;

  std::string Json() const;
};

// Errors of bodies in vLLM's words: a field of the wrong JSON type, a missing field, and a body
// that is not a JSON object. ToHttpError gives them vLLM's type of such errors.
absl::Status WrongType(const std::string& field, const std::string& expected);
absl::Status MissingField(const std::string& field);
absl::Status BadBody(const std::string& message);

// Returns an error with this status and the type that vLLM gives it.
HttpError ErrorOf(int status, std::string message);

// Returns the HTTP form of a status: 400, 404, 429, 499, 500, 503 or 504. The error of a field
// (server/generation/request_fields.h) has its name in `param`.
HttpError ToHttpError(const absl::Status& status);

}  // namespace taopd
