// JSON answers, and errors in vLLM's shape: {"error":{"message","type","param","code"}}.
#pragma once

#include <httplib.h>

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

// A 400 BadRequestError about one field.
HttpError BadField(const std::string& param, const std::string& message);
// A 400 BadRequestError that concerns no single field.
HttpError BadRequest(const std::string& message);
// vLLM's answer to a field of the wrong JSON type.
HttpError WrongType(const std::string& field, const std::string& expected);
// The HTTP form of a status of the engine or the server: 400, 404, 429, 499, 500, 503 or 504. The
// error of a field (server/generation/field_error.h) has its name in `param`.
HttpError FromStatus(const absl::Status& status);
// The same; nullopt for OK.
std::optional<HttpError> ErrorOf(const absl::Status& status);

// Makes `json` the body of the response.
void SendJson(std::string json, httplib::Response& response);
// Makes the error the response, with the headers that its status asks for: Retry-After for 429
// and 503, and the end of the connection for 503.
void SendError(const HttpError& error, httplib::Response& response);

}  // namespace taopd
