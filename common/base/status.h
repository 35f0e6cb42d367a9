// Short ways to make and pass on an absl::Status, which carries errors that a user, a file or the
// network can cause. Messages name the field, the value and the limit: "top_k 300 exceeds
// max_logprobs 128". Checks (check.h) are only for programmer errors.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <sstream>
#include <string>
#include <utility>

namespace taopd {

// Joins the parts as operator<< prints them. Unlike Debian's absl::StrCat, it accepts
// std::string_view.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream out;
  out.precision(9);
  (out << ... << parts);
  return out.str();
}

template <typename... Parts>
absl::Status InvalidArgument(const Parts&... parts) {
  return absl::InvalidArgumentError(Concat(parts...));
}
template <typename... Parts>
absl::Status NotFound(const Parts&... parts) {
  return absl::NotFoundError(Concat(parts...));
}
template <typename... Parts>
absl::Status FailedPrecondition(const Parts&... parts) {
  return absl::FailedPreconditionError(Concat(parts...));
}
template <typename... Parts>
absl::Status Unavailable(const Parts&... parts) {
  return absl::UnavailableError(Concat(parts...));
}
template <typename... Parts>
absl::Status ResourceExhausted(const Parts&... parts) {
  return absl::ResourceExhaustedError(Concat(parts...));
}
template <typename... Parts>
absl::Status Unimplemented(const Parts&... parts) {
  return absl::UnimplementedError(Concat(parts...));
}
template <typename... Parts>
absl::Status Internal(const Parts&... parts) {
  return absl::InternalError(Concat(parts...));
}
// Reports that the content of a file or message is damaged or breaks its format's rules.
template <typename... Parts>
absl::Status DataLoss(const Parts&... parts) {
  return absl::DataLossError(Concat(parts...));
}

// Returns the same status with "where: " before its message. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, const std::string& where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), Concat(where, ": ", std::string(status.message())));
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
