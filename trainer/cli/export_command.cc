// taopd-trainer export: a plain model from a checkpoint.
#include <memory>

#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/commands.h"

namespace taopd {

Subcommand AddExport(CLI::App& app) {
  auto request = std::make_shared<ExportRequest>();
  CLI::App* command = app.add_subcommand(
      "export",
      "Write the model of a checkpoint of any number of ranks, an adapter merged into its base");
  command->add_option("--run", request->run_dir, "Directory of the run")->required();
  command
      ->add_option("--output", request->output_dir,
                   "Directory to write the model to; must not exist")
      ->required();
  command
      ->add_option("--step", request->step,
                   "Number of the checkpoint's step; without it, the newest complete checkpoint")
      ->check(NonNegativeNumber());
  command
      ->add_option("--dtype", request->dtype,
                   "Type of the weights that an adapter is merged into: auto (as the base is "
                   "stored), float32 or bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
  return {command, [request] { return EndCommand(RunExport(*request)); }};
}

}  // namespace taopd
