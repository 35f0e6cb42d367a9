#include "server/http/http_error.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/request_fields.h"
#include "server/http/request/json_fields.h"

namespace taopd {
namespace {

constexpr char kValidation[] = "taopd/validation";  // a payload of errors of this kind

absl::Status ValidationError(const std::string& param, const std::string& message) {
  absl::Status status = FieldStatus(param, "1 validation error:\n  " + message);
  status.SetPayload(kValidation, absl::Cord());
  return status;
}

}  // namespace

std::string HttpError::Json() const {
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = param ? nlohmann::ordered_json(*param) : nlohmann::ordered_json(nullptr);
  error["code"] = status;
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  return JsonText(body);  // a message may quote bytes of the request that are no UTF-8
}

absl::Status WrongType(const std::string& field, const std::string& expected) {
  return ValidationError("body." + field, Concat("{'loc': ('body', '", field,
                                                 "'), 'msg': 'Input should be ", expected, "'}"));
}

absl::Status MissingField(const std::string& field) {
  return ValidationError("body." + field,
                         Concat("{'loc': ('body', '", field, "'), 'msg': 'Field required'}"));
}

absl::Status BadBody(const std::string& message) { return ValidationError("body", message); }

HttpError FromStatus(const absl::Status& status) {
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return {400, status.GetPayload(kValidation) ? "Bad Request" : "BadRequestError",
              FieldOf(status), message};
    case absl::StatusCode::kNotFound:
      return {404, "NotFoundError", FieldOf(status), message};
    case absl::StatusCode::kResourceExhausted:
      return {429, "RateLimitError", std::nullopt, message};
    case absl::StatusCode::kCancelled:
      return {499, "ClientClosedRequest", std::nullopt, message};
    case absl::StatusCode::kUnavailable:
      return {503, "ServiceUnavailableError", std::nullopt, message};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "TimeoutError", std::nullopt, message};
    default:
      return {500, "InternalServerError", std::nullopt, message};
  }
}

}  // namespace taopd
