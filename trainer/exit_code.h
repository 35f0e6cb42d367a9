// The trainer's exit codes (after sysexits.h): what a scheduler needs to decide between retrying
// and giving up.
#pragma once

#include "common/base/status.h"

namespace taopd {

enum class ExitCode : int {
  kFinished = 0,
  kBadConfig = 64,           // the configuration or the command line
  kBadData = 65,             // data, model or checkpoint files
  kTeacherUnavailable = 69,  // after the outage budget
  kInternal = 70,
  kStopped = 75,   // asked to stop; the state is saved, start again with --resume
  kNumerics = 76,  // the loss or the gradients stayed non-finite
};

// A failure with the code the process ends with.
struct RunFailure {
  ExitCode code;
  absl::Status status;
};

// Where a status comes from decides the code: the same INVALID_ARGUMENT is 64 from the
// configuration and 65 from a data file.
inline RunFailure BadConfig(absl::Status status) {
  return {ExitCode::kBadConfig, std::move(status)};
}
inline RunFailure BadData(absl::Status status) { return {ExitCode::kBadData, std::move(status)}; }

}  // namespace taopd
