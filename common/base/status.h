// Short ways to make and pass on an absl::Status, which carries errors that a user, a file or the
// network can cause. Messages name the field, the value and the limit: "top_k 300 must be between 0
// and max_logprobs 128". Checks (check.h) are only for programmer errors.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

namespace taopd {

// One part of a text: a value and the function that prints it. It refers to the value, which must
// outlive it.
class ConcatPart {
 public:
  ConcatPart(const char* text)
      : value_(text), print_([](std::ostream& out, const void* value) {
          out << static_cast<const char*>(value);
        }) {}
  template <typename T>
  ConcatPart(const T& value)
      : value_(std::addressof(value)),
        print_([](std::ostream& out, const void* value) { out << *static_cast<const T*>(value); }) {
  }

  void Print(std::ostream& out) const { print_(out, value_); }

 private:
  const void* value_;
  void (*print_)(std::ostream& out, const void* value);
};

// The functions below with `parts` are compiled once. The templates that call them only collect
// their arguments, since hundreds of places make a message.
std::string ConcatParts(std::initializer_list<ConcatPart> parts);
absl::Status StatusOf(absl::StatusCode code, std::initializer_list<ConcatPart> parts);

// Joins the parts as operator<< prints them. Unlike Debian's absl::StrCat, it accepts
// std::string_view.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  return ConcatParts({ConcatPart(parts)...});
}

// The function that makes a status of one code. The parts are those of Concat.
template <absl::StatusCode code>
struct StatusMaker {
  template <typename... Parts>
  absl::Status operator()(const Parts&... parts) const {
    return StatusOf(code, {ConcatPart(parts)...});
  }
};
inline constexpr StatusMaker<absl::StatusCode::kInvalidArgument> InvalidArgument{};
inline constexpr StatusMaker<absl::StatusCode::kNotFound> NotFound{};
inline constexpr StatusMaker<absl::StatusCode::kFailedPrecondition> FailedPrecondition{};
inline constexpr StatusMaker<absl::StatusCode::kUnavailable> Unavailable{};
inline constexpr StatusMaker<absl::StatusCode::kResourceExhausted> ResourceExhausted{};
inline constexpr StatusMaker<absl::StatusCode::kUnimplemented> Unimplemented{};
inline constexpr StatusMaker<absl::StatusCode::kInternal> Internal{};
// The content of a file or message is damaged or breaks its format's rules.
inline constexpr StatusMaker<absl::StatusCode::kDataLoss> DataLoss{};

// Returns the same status with "where: " before its message. OK stays OK.
absl::Status Annotate(const absl::Status& status, const std::string& where);
// Does the same for a value or an error.
template <typename T>
absl::StatusOr<T> Annotate(absl::StatusOr<T> result, const std::string& where) {
  if (result.ok()) return result;
  return Annotate(result.status(), where);
}

}  // namespace taopd

#define TAOPD_CONCAT_INNER(a, b) a##b
#define TAOPD_CONCAT(a, b) TAOPD_CONCAT_INNER(a, b)

#define TAOPD_RETURN_IF_ERROR(expr)              \
  do {                                           \
    absl::Status taopd_status = (expr);          \
    if (!taopd_status.ok()) return taopd_status; \
  } while (false)

// TAOPD_ASSIGN_OR_RETURN(auto value, MakeValue());
#define TAOPD_ASSIGN_OR_RETURN(lhs, expr) \
  TAOPD_ASSIGN_OR_RETURN_IMPL(TAOPD_CONCAT(taopd_status_or_, __LINE__), lhs, expr)
#define TAOPD_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = std::move(tmp).value()
