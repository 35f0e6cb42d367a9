// The subcommands of taopd-trainer. Each stands in a file of its own, NAME_command.cc, and has one
// row in subcommands.cc; main knows none of them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "trainer/control/control_server.h"
#include "trainer/exit_code.h"

namespace taopd {

// A subcommand that is part of a command line. `run` is called after the line is parsed, when the
// subcommand is the one that the line names; it returns the exit code of the process.
struct Subcommand {
  CLI::App* app = nullptr;  // owned by the application
  std::function<int()> run;
};

// Adds the subcommand with its options to `app`. The options' storage lives in `run`.
using AddSubcommand = Subcommand (*)(CLI::App& app);

// All subcommands, in the order of the help text.
const std::vector<AddSubcommand>& AllSubcommands();

// Says on standard error why a command failed and returns the code of the process.
int EndCommand(const std::optional<RunFailure>& failure);

// SIGTERM and SIGINT ask `state` for a stop (the step in progress ends, the run is saved, the code
// is 75); a second one ends the process at once, and the newest checkpoint stays. Call before
// threads start. `state` must outlive the process's signals, that is, main.
void StopOnSignals(RunState* state);

}  // namespace taopd
