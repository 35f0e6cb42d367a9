// taopd-trainer data: the data that a training run would see.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddData(CLI::App& app) {
  struct Flags {
    ConfigFlags config;
    bool sft = false;
    ShowDataRequest request;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "data",
      "Show the data of a configuration of train or sft: counts by file and source, lengths, "
      "samples");
  flags->config.AddTo(command);
  command->add_flag("--sft", flags->sft,
                    "The configuration is one of sft: show also which tokens are learned");
  command->add_flag("--json", flags->request.json, "Print one JSON object");
  command
      ->add_option("--samples", flags->request.num_samples,
                   "Rendered prompts to show of data.train and of data.val")
      ->check(NumberIn(0, 1000))
      ->capture_default_str();
  return {command, [flags] {
            if (flags->sft) {
              SftConfig sft;
              if (absl::Status status = flags->config.Read(&sft); !status.ok())
                return EndCommand(BadUsage(status));
              return EndCommand(RunShowSftData(sft, flags->request));
            }
            TrainConfig config;
            absl::Status status = flags->config.Read(&config);
            if (status.ok()) status = CheckTrainConfig(config);
            if (!status.ok()) return EndCommand(BadUsage(status));
            return EndCommand(RunShowData(config, flags->request));
          }};
}

}  // namespace taopd
