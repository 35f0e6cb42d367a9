// Turns the exceptions of a subcommand into failures.
#pragma once

#include <functional>

#include "common/base/status.h"

namespace taopd {

// Runs a subcommand and turns exceptions into failures: a lack of memory, LibTorch's errors, and
// any other that was not expected. A failure after which the CUDA device refuses all work ends with
// kExitDevice and names the custom kernel that ran last. Calls may be nested.
absl::Status CatchExceptions(const std::function<absl::Status()>& command);

}  // namespace taopd
