// taopd-trainer report: one page on one or several runs.
#include <memory>

#include "trainer/cli/subcommand.h"
#include "trainer/report/report.h"

namespace taopd {

Subcommand AddReport(CLI::App& app) {
  struct Flags {
    std::vector<std::string> run_dirs;
    std::string output_path;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command =
      app.add_subcommand("report", "One self-contained HTML page of runs and bandit files");
  command->add_option("run_dirs", flags->run_dirs, "Run directories, and files of `bandit`")
      ->required();
  command->add_option("-o,--output", flags->output_path, "The page")->required();
  return {command,
          [flags] { return BadData(report::WriteReport(flags->run_dirs, flags->output_path)); }};
}

}  // namespace taopd
