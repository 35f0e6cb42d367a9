// The subcommands of taopd-trainer on its command line. Each has a source file of its own here and
// one row in subcommands.cc; main.cc names none of them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/control/run_state.h"
#include "trainer/run/exit_status.h"

namespace taopd {

struct Subcommand {
  CLI::App* app = nullptr;  // owned by the application
  // Called after the line is parsed, if it names this subcommand. Returns the process's exit code.
  std::function<int()> run;
};

// Adds a subcommand with its options to `app`. Subcommand::run owns the options' values.
using AddSubcommand = Subcommand (*)(CLI::App& app);

// All subcommands, in the order of the help text.
const std::vector<AddSubcommand>& AllSubcommands();

// Reports on standard error why a command failed, if it did, and returns the process's exit code.
int EndCommand(const absl::Status& result);

// Makes the first SIGTERM or SIGINT ask `state` for a stop: the run is saved, the exit code is 75.
// Others within five seconds are the same wish (repeated_signals.h). A later one ends the process
// at once with code 77, after a line that says which step is saved. Call it before any other thread
// starts. `state` must live as long as the process.
void StopOnSignals(RunState* state);

// For a command that leaves nothing half done: SIGTERM or SIGINT ends the process at once with code
// 75, after a line that gives `reason`. Call it before any other thread starts.
void EndOnSignals(std::string reason);

}  // namespace taopd
