#include "server/http/http_error.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/generation/request_fields.h"
#include "server/http/request/json_fields.h"

namespace taopd {
namespace {

constexpr char kValidation[] = "taopd/validation";  // a payload of errors of this kind

constexpr std::pair<int, const char*> kTypes[] = {
    {404, "NotFoundError"},        {405, "MethodNotAllowedError"},
    {413, "PayloadTooLargeError"}, {415, "UnsupportedMediaTypeError"},
    {429, "RateLimitError"},       {499, "ClientClosedRequest"},
    {500, "InternalServerError"},  {503, "ServiceUnavailableError"},
    {504, "TimeoutError"}};

template <typename Key, typename Value, size_t size>
Value ValueOf(const std::pair<Key, Value> (&table)[size], Key key, Value otherwise) {
  for (const auto& [entry, value] : table) {
    if (entry == key) return value;
  }
  return otherwise;
}

absl::Status ValidationError(const std::string& param, const std::string& message) {
  absl::Status status = FieldStatus(param, "1 validation error:\n  " + message);
  status.SetPayload(kValidation, absl::Cord());
  return status;
}

}  // namespace

std::string HttpError::Json() const {
  const nlohmann::ordered_json error = {
      {"message", message},
      {"type", type},
      {"param", param ? nlohmann::ordered_json(*param) : nlohmann::ordered_json(nullptr)},
      {"code", status}};
  return JsonText({{"error", error}});  // a message may quote bytes that are not UTF-8
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

HttpError ErrorOf(int status, std::string message) {
  return {status, ValueOf(kTypes, status, "BadRequestError"), std::nullopt, std::move(message)};
}

HttpError ToHttpError(const absl::Status& status) {
  using enum absl::StatusCode;
  static constexpr std::pair<absl::StatusCode, int> kStatuses[] = {
      {kInvalidArgument, 400}, {kOutOfRange, 400},        {kFailedPrecondition, 400},
      {kNotFound, 404},        {kResourceExhausted, 429}, {kCancelled, 499},
      {kAborted, 503},         {kUnavailable, 503},       {kDeadlineExceeded, 504}};
  HttpError error = ErrorOf(ValueOf(kStatuses, status.code(), 500), std::string(status.message()));
  if (error.status == 400 && status.GetPayload(kValidation)) error.type = "Bad Request";
  if (error.status == 400 || error.status == 404) error.param = FieldOf(status);
  return error;
}

}  // namespace taopd
