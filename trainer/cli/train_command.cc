// taopd-trainer train and sft: the two commands that write a run directory.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"

namespace taopd {
namespace {

struct RunFlags {
  ConfigFlags config;
  StartMode mode;
  RunState state;  // lives as long as the process, for the thread that takes the signals
};

std::shared_ptr<RunFlags> AddRunFlags(CLI::App* command) {
  auto flags = std::make_shared<RunFlags>();
  flags->config.AddTo(command);
  AddStartFlags(command, &flags->mode);
  return flags;
}

}  // namespace

Subcommand AddTrain(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("train", "On-policy distillation, a daemon per experiment");
  auto flags = AddRunFlags(command);
  command
      ->add_flag("--dry-run", flags->mode.dry_run,
                 "Check configuration, data, memory plan and teacher, and take one batch through a "
                 "step: print its loss, change no weight, leave nothing on the disk")
      ->excludes("--resume");
  return {command, [flags] {
            TrainConfig config;
            absl::Status status = flags->config.Read(&config);
            if (status.ok()) status = CheckTrainConfig(config);
            if (!status.ok()) return EndCommand(BadUsage(status));
            StopOnSignals(&flags->state);
            return EndCommand(RunTraining(std::move(config), flags->mode, &flags->state));
          }};
}

Subcommand AddSft(CLI::App& app) {
  CLI::App* command = app.add_subcommand("sft", "Supervised training on prompt/response pairs");
  auto flags = AddRunFlags(command);
  return {command, [flags] {
            SftConfig config;
            if (absl::Status status = flags->config.Read(&config); !status.ok())
              return EndCommand(BadUsage(status));
            StopOnSignals(&flags->state);
            return EndCommand(RunSft(std::move(config), flags->mode, &flags->state));
          }};
}

}  // namespace taopd
