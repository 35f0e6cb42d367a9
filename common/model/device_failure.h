// The status of a device that refuses all work until the process ends. The programs give it an exit
// code of its own (kExitDevice in common/base/exit_code.h).
#pragma once

#include "common/base/status.h"

namespace taopd {

inline constexpr char kDeviceFailureUrl[] = "taopd.device_failure";  // of the status's payload

template <typename... Parts>
absl::Status DeviceFailure(const Parts&... parts) {
  absl::Status status = Internal(parts...);
  status.SetPayload(kDeviceFailureUrl, absl::Cord());
  return status;
}

inline bool IsDeviceFailure(const absl::Status& status) {
  return status.GetPayload(kDeviceFailureUrl).has_value();
}

}  // namespace taopd
