// What every subcommand with a model does to its process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "common/model/out_of_memory.h"
#include "trainer/run/exit_status.h"

namespace taopd {

// Sets how many threads LibTorch's operations use; 0 means one for each core, or, of
// `num_processes` like this one on the machine, an equal part of them.
void SetNumThreads(int64_t num_threads, int64_t num_processes = 1);

// The most memory that this process has held so far (VmHWM); 0 if the system does not say.
int64_t PeakMemoryBytes();

// Runs a subcommand and turns exceptions into failures: a lack of memory, LibTorch's errors, and
// any other that was not expected.
absl::Status CatchExceptions(const std::function<absl::Status()>& command);

}  // namespace taopd
