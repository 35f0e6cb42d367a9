#include "trainer/teacher/retry_policy.h"

#include <algorithm>
#include <cmath>

namespace taopd {
namespace {

Retry RetryOfStatus(const absl::Status& status) {
  if (IsRefusal(status)) return Retry::kUntilBudget;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return Retry::kUntilBudget;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return Retry::kOncePerEndpoint;
    default:
      return Retry::kNever;
  }
}

}  // namespace

Retry RetryOf(const ScoreTransport::Result& result) {
  if (result.pushback.has_value() && *result.pushback < absl::ZeroDuration()) return Retry::kNever;
  return RetryOfStatus(result.scores.status());
}

bool IsEndpointFailure(const absl::Status& status) {
  // An endpoint whose queue is full does answer.
  return !absl::IsResourceExhausted(status) && RetryOfStatus(status) != Retry::kNever;
}

bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status) ||
         absl::IsPermissionDenied(status);
}

Backoff::Backoff(const RetryOptions& options)
    : initial_(options.initial_backoff), max_(options.max_backoff), jitter_(options.jitter_seed) {}

absl::Duration Backoff::PauseAfter(int64_t num_failures) {
  const double growth = std::exp2(static_cast<double>(std::min<int64_t>(num_failures - 1, 62)));
  return std::min(max_, initial_ * growth) * jitter_.NextUniform();
}

}  // namespace taopd
