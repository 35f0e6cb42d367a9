// The command line of taopd-trainer: its own options, the choice of the subcommand, and what it
// says of words that it does not know.
#pragma once

#include <span>

#include "trainer/cli/subcommand.h"

namespace taopd {

// Calls a function and turns its exceptions into failures (CatchExceptions in catch_exceptions.h).
using ExceptionGuard = absl::Status (*)(const std::function<absl::Status()>& run);

// Parses the line and runs the subcommand that it names under `guard`. Prints help and errors.
// Returns the exit code of the process. The help text lists `subcommands` in their order.
int RunCommandLine(int argc, char** argv, std::span<const AddSubcommand> subcommands,
                   ExceptionGuard guard);

}  // namespace taopd
