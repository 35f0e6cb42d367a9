#include <absl/strings/str_join.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/log.h"
#include "common/base/thread_waits.h"
#include "common/config/settings.h"
#include "kernels/cpu/isa/isa.h"
#include "trainer/cli/subcommand.h"

namespace taopd {
namespace {

// Prints the options that an option needs or excludes in the order of their names. CLI11 keeps them
// in the order of their addresses, which changes from start to start.
class HelpFormatter final : public CLI::Formatter {
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    text.resize(std::min({text.size(), text.find(" Needs:"), text.find(" Excludes:")}));
    return Concat(text, SortedNames(" Needs: ", option->get_needs()),
                  SortedNames(" Excludes: ", option->get_excludes()));
  }

  static std::string SortedNames(const char* label, const std::set<CLI::Option*>& options) {
    std::set<std::string> names;
    for (const CLI::Option* option : options) names.insert(option->get_name());
    return names.empty() ? "" : label + absl::StrJoin(names, " ");
  }
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

// The ranks of `launch` start with these signals blocked, so that one that comes while a rank loads
// waits for the thread that takes it. A command without such a thread must get it at once.
void UnblockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
}

// Reports on standard error why a command failed, if it did. Returns the process's exit code.
int EndCommand(const absl::Status& result) {
  const ExitCode code = ExitCodeOf(result);
  if (result.ok() || result.message().empty()) return code;
  std::cout.flush();
  if (IsStop(code)) {
    LogInfo("stopped", {{"reason", std::string(result.message())}});
  } else {
    std::fprintf(stderr, "taopd-trainer: %s\n", std::string(result.message()).c_str());
  }
  return code;
}

}  // namespace

int RunCommandLine(int argc, char** argv, std::span<const AddSubcommand> subcommands,
                   ExceptionGuard guard) {
  if (const std::string problem = cpu::ProblemOfMaxIsa(); !problem.empty()) {
    std::fprintf(stderr, "taopd-trainer: %s\n", problem.c_str());
    return kExitUsage;
  }
  CLI::App app{
      "taopd-trainer: trains a small language model on its own generations under a teacher"};
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("taopd-trainer " TAOPD_VERSION "\nCPU kernels: ") +
                                        cpu::NameOf(cpu::WidestInstructionSet()));
  std::string log_level = "info";
  app.add_option("--log-level", log_level,
                 "Lowest level of messages in the log: debug, info, warning or error")
      ->capture_default_str();
  std::vector<Subcommand> added;
  for (AddSubcommand add : subcommands) added.push_back(add(app));

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
  for (const Subcommand& subcommand : added) {
    if (!*subcommand.app) continue;
    if (!subcommand.takes_signals) UnblockSignals();
    return EndCommand(guard(subcommand.run));
  }
  return kExitUsage;  // not reached: one subcommand is required
}

}  // namespace taopd
