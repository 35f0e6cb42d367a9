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

// Returns the code: kExitOk for OK, and kExitInternal for an error that was given none.
inline ExitCode ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitOk;
  const auto code = status.GetPayload(kExitCodeUrl);
  return code ? static_cast<ExitCode>(std::stoi(std::string(*code))) : kExitInternal;
}

inline absl::Status BadUsage(absl::Status status) {
  return WithExitCode(kExitUsage, std::move(status));
}
inline absl::Status BadData(absl::Status status) {
  return WithExitCode(kExitData, std::move(status));
}
// Gives the code to a failure of loading a model: RESOURCE_EXHAUSTED means that the memory does not
// suffice.
inline absl::Status BadModel(absl::Status status) {
  const ExitCode code = absl::IsResourceExhausted(status) ? kExitOutOfMemory : kExitData;
  return WithExitCode(code, std::move(status));
}

}  // namespace taopd
