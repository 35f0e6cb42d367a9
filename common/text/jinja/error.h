// The error of a template that cannot be parsed or rendered. It is thrown, because it can come from
// any depth of an expression. Template::Parse and Template::Render catch it and return a Status, so
// no exception leaves this folder.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "common/base/status.h"

namespace taopd::jinja {

struct Position {
  int line = 0;    // from 1; 0 if unknown
  int column = 0;  // from 1, in characters
};

class TemplateError : public std::exception {
 public:
  TemplateError(absl::StatusCode code, std::string message, Position position = {})
      : code_(code), message_(std::move(message)), position_(position) {}
  const char* what() const noexcept override { return message_.c_str(); }
  absl::StatusCode code() const { return code_; }
  Position position() const { return position_; }

 private:
  absl::StatusCode code_;
  std::string message_;
  Position position_;
};

// These functions throw INVALID_ARGUMENT for what Python's jinja2 also refuses.
template <typename... Parts>
[[noreturn]] void Fail(const Parts&... parts) {
  throw TemplateError(absl::StatusCode::kInvalidArgument, Concat(parts...));
}
template <typename... Parts>
[[noreturn]] void FailAt(Position position, const Parts&... parts) {
  throw TemplateError(absl::StatusCode::kInvalidArgument, Concat(parts...), position);
}
// Throws RESOURCE_EXHAUSTED when a limit of limits.h is exceeded.
template <typename... Parts>
[[noreturn]] void FailLimit(const Parts&... parts) {
  throw TemplateError(absl::StatusCode::kResourceExhausted, Concat(parts...));
}

}  // namespace taopd::jinja
