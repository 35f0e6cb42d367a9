#include "trainer/setup/process.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>

#include "common/base/memory.h"
#include "common/dist/rendezvous.h"
#include "common/model/device_failure.h"

namespace taopd {

void SetNumThreads(int64_t num_threads, int64_t num_processes) {
  if (num_threads == 0) {
    num_threads = std::max<int64_t>(1, std::thread::hardware_concurrency() / num_processes);
  }
  at::set_num_threads(static_cast<int>(num_threads));
}

absl::Status ChooseKernels(const KernelUse& use,
                           const std::function<absl::StatusOr<ModelConfig>()>& read_config) {
  const absl::Status chosen = SetUpKernels(use, read_config);
  return IsDeviceFailure(chosen) ? WithExitCode(kExitDevice, Internal(chosen.message()))
                                 : BadModel(chosen);
}

absl::Status CheckIsAlone(const std::string& command) {
  TAOPD_ASSIGN_OR_RETURN(const Rendezvous where, BadUsage(ReadRendezvous(ProcessEnvironment())));
  if (where.world_size == 1) return absl::OkStatus();
  return BadUsage(Unimplemented(where.source, ": ", command,
                                " runs in one process, and this is one of ", where.world_size));
}

int64_t PeakMemoryBytes() { return NumberAfter("/proc/self/status", "VmHWM:").value_or(0) * 1024; }

}  // namespace taopd
