// The flags that subcommands share: --config and --set, from which a configuration is read, and
// --resume and --overwrite; and checks of numbers on the command line.
#pragma once

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "common/config/yaml.h"
#include "trainer/config/train_config.h"
#include "trainer/control/run_control.h"
#include "trainer/run/exit_status.h"
#include "trainer/run/resume/resume_check.h"
#include "trainer/run/run_directory.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace taopd {

// Errors have kExitUsage.
struct ConfigFlags {
  std::string path;                    // --config; empty if it was not given
  std::vector<std::string> overrides;  // --set

  void AddTo(CLI::App* app, bool required = true);

  // Reads the file, applies the overrides and checks each setting.
  template <typename Config>
  absl::Status Read(Config* config) const {
    const SettingTable table = DescribeSettings(*config);
    if (!path.empty()) TAOPD_RETURN_IF_ERROR(BadUsage(ReadYamlFile(path, table)));
    for (const std::string& assignment : overrides)
      TAOPD_RETURN_IF_ERROR(BadUsage(ApplyOverride(assignment, table)));
    return BadUsage(CheckSettings(DescribeSettings(*config)));
  }

  // The same for a configuration of train, whose settings are then checked together.
  absl::StatusOr<TrainConfig> ReadTrainConfig() const;
};

// Prints the settings of a run that differ from their defaults.
template <typename Config>
void PrintChangedSettings(Config config) {
  Config defaults;
  std::cout << "# settings that differ from their defaults; the run keeps all in "
            << config.run.Directory() << "/config.yaml\n"
            << ChangedSettings(FactsOf(DescribeSettings(config)),
                               FactsOf(DescribeSettings(defaults)))
            << std::flush;
}

// The flags of the commands that write a run directory.
struct RunFlags {
  ConfigFlags config;
  StartMode mode;
  // Shared with the thread that takes the signals (StopOnSignals).
  std::shared_ptr<RunControl> control = std::make_shared<RunControl>();

  // Adds --config and --set, and --resume, --allow-change and --overwrite.
  static std::shared_ptr<RunFlags> AddTo(CLI::App* app);
};

// Checks of numbers on the command line. CLI11's own print their limits with six decimals, and the
// largest double with 309 digits.
CLI::Validator PositiveNumber();
CLI::Validator NonNegativeNumber();
CLI::Validator NumberIn(double low, double high);

}  // namespace taopd
