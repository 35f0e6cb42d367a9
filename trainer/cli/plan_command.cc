// taopd-trainer plan: what memory a training run would take.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddPlan(CLI::App& app) {
  struct Flags {
    ConfigFlags config;
    std::string device_memory;
    int64_t ranks = 1;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show what memory a training configuration takes, line by line; reads no weights");
  flags->config.AddTo(command);
  command->add_option("--device-memory", flags->device_memory,
                      "Plan for a device of this size, such as 80GB, in place of this machine's");
  command
      ->add_option("--ranks", flags->ranks,
                   "Plan for one of so many processes that share prompts and optimizer state")
      ->check(CLI::Range(1, 1024));
  return {command, [flags] {
            TrainConfig config;
            absl::Status status = flags->config.Read(&config);
            if (status.ok()) status = CheckTrainConfig(config);
            if (!status.ok()) return EndCommand(BadUsage(status));
            return EndCommand(RunPlan(config, flags->device_memory, flags->ranks));
          }};
}

}  // namespace taopd
