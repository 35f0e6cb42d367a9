// The end of a subcommand: an absl::Status that carries the exit code of the process.
//
// The source of an error decides the code: the same INVALID_ARGUMENT is kExitUsage for a setting
// and kExitData for a data file. Annotate and the ranks' agreement drop the code, so it is given
// last.
#pragma once

#include <string>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace taopd {

inline constexpr char kExitCodeUrl[] = "taopd.exit_code";  // of the status's payload

// Returns the status with the code; OK stays OK.
inline absl::Status WithExitCode(ExitCode code, absl::Status status) {
  if (!status.ok()) status.SetPayload(kExitCodeUrl, absl::Cord(std::to_string(code)));
  return status;
}

// The same for a value or an error.
template <typename T>
absl::StatusOr<T> WithExitCode(ExitCode code, absl::StatusOr<T> result) {
  if (result.ok()) return result;
  return WithExitCode(code, std::move(result).status());
}

// Returns the status of a Status or a StatusOr.
inline const absl::Status& ToStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& ToStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

// Returns whether the error comes from the ranks' group itself, as when another rank has died.
inline bool IsRankLost(const absl::Status& status) {
  return status.GetPayload(kLostRankUrl).has_value();
}

// Returns the code: kExitOk for OK, kExitUnavailable for a lost rank whatever code the error was
// given, and kExitInternal for an error that was given none.
inline ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  if (IsRankLost(status)) return kExitUnavailable;
  const auto code = status.GetPayload(kExitCodeUrl);
  return code ? static_cast<ExitCode>(std::stoi(std::string(*code))) : kExitInternal;
}

// Returns whether a server that the process needs does not answer, or refuses the API key. Such an
// error ends a run or an evaluation with kExitUnavailable.
inline bool IsServerAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
}

// Returns the exit code of a run whose step, or a rollout of a later one, has failed with `status`.
inline ExitCode CodeOfFailedStep(const absl::Status& status) {
  if (IsServerAway(status)) return kExitUnavailable;
  if (absl::IsAborted(status)) return kExitStorage;  // of PublishedWeights
  const bool is_of_data = absl::IsFailedPrecondition(status) || absl::IsDataLoss(status) ||
                          absl::IsInvalidArgument(status);
  if (is_of_data) return kExitData;
  return absl::IsResourceExhausted(status) ? kExitOutOfMemory : kExitInternal;
}

// These take a Status or a StatusOr, and give an error its code.
template <typename Result>
Result BadUsage(Result result) {
  return WithExitCode(kExitUsage, std::move(result));
}
template <typename Result>
Result BadData(Result result) {
  return WithExitCode(kExitData, std::move(result));
}
// For a failure of loading a model: RESOURCE_EXHAUSTED means that the memory does not suffice.
template <typename Result>
Result BadModel(Result result) {
  const bool is_short = absl::IsResourceExhausted(ToStatus(result));
  return WithExitCode(is_short ? kExitOutOfMemory : kExitData, std::move(result));
}

// Returns a status without a message, for a command that has reported its errors itself.
inline absl::Status WithoutMessage(int code) {
  return WithExitCode(static_cast<ExitCode>(code),
                      code == kExitOk ? absl::OkStatus() : absl::UnknownError(""));
}

}  // namespace taopd
