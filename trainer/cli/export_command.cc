// taopd-trainer export: a plain model from a checkpoint.
#include <memory>

#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/commands.h"

namespace taopd {

Subcommand AddExport(CLI::App& app) {
  auto request = std::make_shared<ExportRequest>();
  CLI::App* command = app.add_subcommand(
      "export", "Copy the model of a checkpoint, written by any number of ranks, to a directory");
  command->add_option("--run", request->run_dir, "Directory of the run")->required();
  command
      ->add_option("--output", request->output_dir,
                   "Directory to write the model to; must not exist")
      ->required();
  command
      ->add_option("--step", request->step,
                   "Number of the checkpoint's step; without it, the newest complete checkpoint")
      ->check(NonNegativeNumber());
  return {command, [request] { return EndCommand(RunExport(*request)); }};
}

}  // namespace taopd
