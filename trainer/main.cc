// taopd-trainer: parses the command line and runs the subcommand that it names.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/run_main.h"
#include "common/base/thread_waits.h"
#include "common/config/settings.h"
#include "kernels/cpu/isa/isa.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/process.h"

namespace taopd {

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

namespace {

// In the order of the help text.
constexpr AddSubcommand kSubcommands[] = {
    AddTrain,     AddSft,    AddLaunch, AddEval,         AddExport,       AddData,     AddPlan,
    AddGenerate,  AddGrade,  AddReport, AddConfig,       AddObjectives,   AddTokenize, AddRender,
    AddObjective, AddBandit, AddScore,  AddBenchTeacher, AddBenchRollout,
};

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// Names the word of the line that is not known, such as: unknown command "trian" (did you mean
// "train"?). Returns an empty text if every word was recognized. CLI11 itself reports missing
// arguments first: "A subcommand is required" for `trian`.
std::string DescribeUnknownArgument(const CLI::App& app) {
  if (const std::vector<std::string> words = app.remaining(); !words.empty()) {
    const bool is_option = words[0].starts_with("-");
    return Concat(is_option ? "unknown option \"" : "unknown command \"", words[0], "\"",
                  DidYouMean(words[0], is_option ? OptionNames(app) : CommandNames(app)));
  }
  for (const CLI::App* command : app.get_subcommands()) {
    const std::vector<std::string> words = command->remaining();
    if (words.empty()) continue;
    return Concat(command->get_name(), ": unknown ",
                  words[0].starts_with("-") ? "option \"" : "argument \"", words[0], "\"",
                  DidYouMean(words[0], OptionNames(*command)));
  }
  return "";
}

int Main(int argc, char** argv) {
  if (const std::string problem = cpu::ProblemOfMaxIsa(); !problem.empty()) {
    std::fprintf(stderr, "taopd-trainer: %s\n", problem.c_str());
    return kExitUsage;
  }
  CLI::App app{
      "taopd-trainer: trains a small language model on its own generations under a teacher"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("taopd-trainer " TAOPD_VERSION "\nCPU kernels: ") +
                                        cpu::NameOf(cpu::WidestInstructionSet()));
  std::string log_level = "info";
  app.add_option("--log-level", log_level,
                 "Lowest level of messages in the log: debug, info, warning or error")
      ->capture_default_str();
  std::vector<Subcommand> subcommands;
  for (AddSubcommand add : kSubcommands) subcommands.push_back(add(app));

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_help = error.get_exit_code() == 0;
    if (const std::string unknown = DescribeUnknownArgument(app); !is_help && !unknown.empty()) {
      std::fprintf(stderr, "taopd-trainer: %s\nRun with --help for more information.\n",
                   unknown.c_str());
      return kExitUsage;
    }
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  if (absl::Status status = SetLogLevel(log_level); !status.ok())
    return EndCommand(BadUsage(status));
  StopLookingForLockCycles();
  for (const Subcommand& subcommand : subcommands) {
    if (*subcommand.app) return EndCommand(CatchExceptions(subcommand.run));
  }
  return kExitUsage;  // not reached: one subcommand is required
}

}  // namespace
}  // namespace taopd

[[gnu::used, gnu::section(".preinit_array")]] auto* const restart_at_load =
    taopd::RestartWithShortThreadWaits;

int main(int argc, char** argv) {
  // A write beyond a limit of the file size (ulimit -f) fails as on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  taopd::KeepFreedMemory();
  const int exit_code = taopd::RunMain("taopd-trainer", [&] { return taopd::Main(argc, argv); });
#ifndef __SANITIZE_ADDRESS__  // it reports leaks at the end
  taopd::LeaveProcess(exit_code);
#endif
  return exit_code;
}
