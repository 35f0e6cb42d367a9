// The subcommand report: makes one page about one or several runs.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "trainer/cli/subcommand.h"
#include "trainer/report/report.h"

namespace taopd {

Subcommand AddReport(CLI::App& app) {
  struct Flags {
    std::vector<std::string> run_dirs;
    std::string output_path;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "report", "Write one self-contained HTML page about runs and results of `bandit`");
  command->add_option("run_dirs", flags->run_dirs, "Run directories, and result files of `bandit`")
      ->required();
  command->add_option("-o,--output", flags->output_path, "HTML file of the page")->required();
  return {command,
          [flags] { return BadData(report::WriteReport(flags->run_dirs, flags->output_path)); }};
}

}  // namespace taopd
