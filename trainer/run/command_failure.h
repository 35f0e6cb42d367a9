// Why a subcommand failed, and the code that the process ends with.
#pragma once

#include <utility>

#include "common/base/exit_code.h"
#include "common/base/status.h"

namespace taopd {

// Where a status comes from decides the code: the same INVALID_ARGUMENT is kExitUsage for a setting
// and kExitData for a data file.
struct CommandFailure {
  ExitCode code;
  absl::Status status;
};

inline CommandFailure BadUsage(absl::Status status) { return {kExitUsage, std::move(status)}; }
inline CommandFailure BadData(absl::Status status) { return {kExitData, std::move(status)}; }

}  // namespace taopd
