// taopd-trainer: parses the command line and runs the subcommand that it names.
#include <CLI/CLI.hpp>

#include "common/base/log.h"
#include "trainer/cli/subcommand.h"

namespace taopd {
namespace {

int Main(int argc, char** argv) {
  CLI::App app{
      "taopd-trainer: trains a small language model on its own generations under a teacher"};
  app.require_subcommand(1);
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();
  std::vector<Subcommand> subcommands;
  for (AddSubcommand add : AllSubcommands()) subcommands.push_back(add(app));

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kBadConfig);
  }
  if (absl::Status status = SetLogLevel(log_level); !status.ok())
    return EndCommand(BadConfig(status));
  for (const Subcommand& subcommand : subcommands) {
    if (*subcommand.app) return subcommand.run();
  }
  return static_cast<int>(ExitCode::kBadConfig);  // not reached: one subcommand is required
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) { return taopd::Main(argc, argv); }
