#include "trainer/commands/catch_exceptions.h"

#include <exception>
#include <string>

#include "common/model/device_failure.h"
#include "common/model/torch_errors.h"
#include "trainer/run/exit_status.h"

namespace taopd {
namespace {

absl::Status RunAndCatch(const std::function<absl::Status()>& command) {
  try {
    return command();
  } catch (const std::exception& error) {
    if (IsOutOfMemory(error)) {
      return WithExitCode(kExitOutOfMemory, ResourceExhausted("out of memory: ", MessageOf(error)));
    }
    return WithExitCode(kExitInternal, Internal("unexpected error: ", MessageOf(error)));
  }
}

}  // namespace

absl::Status CatchExceptions(const std::function<absl::Status()>& command) {
  const absl::Status status = RunAndCatch(command);
  if (status.ok() || IsDeviceFailure(status) || !CudaDeviceIsLost()) return status;
  return WithExitCode(kExitDevice, DeviceFailure(DeviceFailureText(std::string(status.message()))));
}

}  // namespace taopd
