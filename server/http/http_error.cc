#include "server/http/http_error.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/field_error.h"

namespace taopd {
namespace {

constexpr char kJson[] = "application/json";

}  // namespace

std::string HttpError::Json() const {
  nlohmann::ordered_json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = param ? nlohmann::ordered_json(*param) : nlohmann::ordered_json(nullptr);
  error["code"] = status;
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  // A message may quote bytes of the request that are no UTF-8.
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpError BadField(const std::string& param, const std::string& message) {
  return {400, "BadRequestError", param, message};
}

HttpError BadRequest(const std::string& message) {
  return {400, "BadRequestError", std::nullopt, message};
}

HttpError WrongType(const std::string& field, const std::string& expected) {
  return {400, "Bad Request", "body." + field,
          Concat("1 validation error:\n  {'loc': ('body', '", field, "'), 'msg': 'Input should be ",
                 expected, "'}")};
}

HttpError FromStatus(const absl::Status& status) {
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return {400, "BadRequestError", FieldOf(status), message};
    case absl::StatusCode::kNotFound:
      return {404, "NotFoundError", std::nullopt, message};
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

std::optional<HttpError> ErrorOf(const absl::Status& status) {
  if (status.ok()) return std::nullopt;
  return FromStatus(status);
}

void SendJson(std::string json, httplib::Response& response) {
  response.body = std::move(json);
  response.set_header("Content-Type", kJson);
}

void SendError(const HttpError& error, httplib::Response& response) {
  response.status = error.status;
  if (error.status == 429 || error.status == 503) response.set_header("Retry-After", "1");
  if (error.status == 503) response.set_header("Connection", "close");
  SendJson(error.Json(), response);
}

}  // namespace taopd
