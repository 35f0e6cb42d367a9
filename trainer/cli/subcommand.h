// The subcommands of taopd-trainer and the command line that chooses one of them. A subcommand is
// its options and what it does. A source of trainer/commands defines each, and main.cc lists them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "trainer/control/run_control.h"
#include "trainer/run/exit_status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace taopd {

struct Subcommand {
  CLI::App* app = nullptr;  // owned by the application
  // Called after the line is parsed, if it names this subcommand. Errors carry their exit code; one
  // without a message has been reported. The command line's guard catches exceptions.
  std::function<absl::Status()> run;
  // Whether `run` calls StopOnSignals or EndOnSignals. SIGTERM and SIGINT end the others as usual.
  bool takes_signals = false;
};

// Adds a subcommand with its options to `app`. Subcommand::run owns the options' values.
using AddSubcommand = Subcommand (*)(CLI::App& app);
Subcommand AddTrain(CLI::App& app);
Subcommand AddSft(CLI::App& app);
Subcommand AddLaunch(CLI::App& app);
Subcommand AddEval(CLI::App& app);
Subcommand AddExport(CLI::App& app);
Subcommand AddData(CLI::App& app);
Subcommand AddPlan(CLI::App& app);
Subcommand AddGenerate(CLI::App& app);
Subcommand AddGrade(CLI::App& app);
Subcommand AddReport(CLI::App& app);
Subcommand AddConfig(CLI::App& app);
Subcommand AddObjectives(CLI::App& app);
Subcommand AddTokenize(CLI::App& app);
Subcommand AddRender(CLI::App& app);
Subcommand AddObjective(CLI::App& app);
Subcommand AddBandit(CLI::App& app);
Subcommand AddScore(CLI::App& app);
Subcommand AddBenchTeacher(CLI::App& app);
Subcommand AddBenchRollout(CLI::App& app);

// Calls a function and turns its exceptions into failures (CatchExceptions in catch_exceptions.h).
using ExceptionGuard = absl::Status (*)(const std::function<absl::Status()>& run);

// Parses the line and runs the subcommand that it names under `guard`. Prints help, names words of
// the line that it does not know, and reports errors. Returns the exit code of the process. The
// help text lists `subcommands` in their order.
int RunCommandLine(int argc, char** argv, std::span<const AddSubcommand> subcommands,
                   ExceptionGuard guard);

// Makes the first SIGTERM or SIGINT ask `control` for a stop: the run is saved, and the exit code
// is 75. Others within five seconds are the same request (repeated_signals.h). A later one ends the
// process immediately with code 77, after a line that says which step is saved; a run that waits
// for storage is asked again to stop instead. Call it before any other thread starts. The thread
// that takes the signals shares `control` and never ends.
void StopOnSignals(std::shared_ptr<RunControl> control);

// Makes SIGTERM or SIGINT end the process immediately with code 75, after a line that gives
// `reason`, for a command that leaves nothing half done. Call it before any other thread starts.
void EndOnSignals(std::string reason);

}  // namespace taopd
