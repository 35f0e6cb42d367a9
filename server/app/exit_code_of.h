// Maps an error to the exit code of a program that cannot serve or plan a model.
#pragma once

#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/model/device_failure.h"

namespace taopd {

inline int ExitCodeOf(const absl::Status& status) {
  if (IsDeviceFailure(status)) return kExitDevice;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kUnavailable:
      return kExitUnavailable;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return kExitInternal;
    case absl::StatusCode::kResourceExhausted:
      return kExitOutOfMemory;
    default:
      return kExitData;
  }
}

}  // namespace taopd
