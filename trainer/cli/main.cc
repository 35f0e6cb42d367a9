// taopd-trainer: parses the command line and runs the subcommand that it names.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/run_main.h"
#include "common/base/thread_waits.h"
#include "kernels/cpu/isa/isa.h"
#include "trainer/cli/subcommand.h"
#include "trainer/cli/unknown_argument.h"

namespace taopd {
namespace {

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
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();
  std::vector<Subcommand> subcommands;
  for (AddSubcommand add : AllSubcommands()) subcommands.push_back(add(app));

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
  RestartWithShortThreadWaits(argv);
  StopLookingForLockCycles();
  for (const Subcommand& subcommand : subcommands) {
    if (*subcommand.app) return subcommand.run();
  }
  return kExitUsage;  // not reached: one subcommand is required
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) {
  // A write beyond a limit of the file size (ulimit -f) fails as on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  taopd::KeepFreedMemory();
  return taopd::RunMain("taopd-trainer", [&] { return taopd::Main(argc, argv); });
}
