// Process-wide set-up for every subcommand with a model.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/model/kernel_setup.h"
#include "trainer/run/exit_status.h"

namespace taopd {

// Sets the number of threads of LibTorch's operations. 0 means one per core or, with several of
// `num_processes` on this machine, an equal part of the cores.
void SetNumThreads(int64_t num_threads, int64_t num_processes = 1);

// Chooses the kernels of the process for a model (SetUpKernels in common/model/kernel_setup.h).
// Errors carry their exit code.
absl::Status ChooseKernels(const KernelUse& use,
                           const std::function<absl::StatusOr<ModelConfig>()>& read_config);

// Refuses with kExitUsage to run `command` as one of the ranks of a launcher: all of them would do
// the same work and write the same files.
absl::Status CheckIsAlone(const std::string& command);

// Returns the peak of this process's resident memory (VmHWM), or 0 if the system does not report
// it.
int64_t PeakMemoryBytes();

}  // namespace taopd
