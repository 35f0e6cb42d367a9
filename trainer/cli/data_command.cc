// taopd-trainer data: the data that a training run would see.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddData(CLI::App& app) {
  struct Flags {
    ConfigFlags config;
    ShowDataRequest request;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "data",
      "Show the prompts of a training configuration: counts by file and source, lengths, samples");
  flags->config.AddTo(command);
  command->add_flag("--json", flags->request.json, "Print one JSON object");
  command
      ->add_option("--samples", flags->request.num_samples,
                   "Rendered prompts to show of data.train and of data.val")
      ->check(NumberIn(0, 1000))
      ->capture_default_str();
  return {command, [flags] {
            TrainConfig config;
            absl::Status status = flags->config.Read(&config);
            if (status.ok()) status = CheckTrainConfig(config);
            if (!status.ok()) return EndCommand(BadUsage(status));
            return EndCommand(RunShowData(config, flags->request));
          }};
}

}  // namespace taopd
