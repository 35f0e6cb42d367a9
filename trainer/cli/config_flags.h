// The flags that subcommands share: --config and --set, from which a configuration is read, and
// --resume and --overwrite.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "common/config/yaml.h"
#include "trainer/config/train_config.h"
#include "trainer/control/run_state.h"
#include "trainer/run/exit_status.h"
#include "trainer/run/run_directory.h"

namespace taopd {

// Errors have kExitUsage.
struct ConfigFlags {
  std::string path;                    // --config; empty if it was not given
  std::vector<std::string> overrides;  // --set

  void AddTo(CLI::App* app, bool required = true) {
    app->add_option("--config", path, "YAML file; see the configuration reference")
        ->required(required);
    app->add_option("--set", overrides, "Override a setting: section.key=value (repeatable)")
        ->expected(1)
        ->take_all();
  }

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
  absl::StatusOr<TrainConfig> ReadTrainConfig() const {
    TrainConfig config;
    TAOPD_RETURN_IF_ERROR(Read(&config));
    TAOPD_RETURN_IF_ERROR(BadUsage(CheckTrainConfig(config)));
    return config;
  }
};

// The flags of the commands that write a run directory.
struct RunFlags {
  ConfigFlags config;
  StartMode mode;
  RunState state;  // lives as long as the process, for the thread that takes the signals

  // Adds --config and --set, and --resume, --allow-change and --overwrite.
  static std::shared_ptr<RunFlags> AddTo(CLI::App* app) {
    auto flags = std::make_shared<RunFlags>();
    flags->config.AddTo(app);
    StartMode* const mode = &flags->mode;
    const CLI::Validator value(
        [mode](std::string& text) -> std::string {
          if (text != "true" && text != "auto")
            return "takes no value but auto, not \"" + text + "\"";
          mode->may_start = text == "auto";
          text = "true";
          return "";
        },
        "");
    auto* resume = app->add_flag("--resume", mode->resume,
                                 "Continue from the newest complete checkpoint of run.dir. Without "
                                 "a checkpoint the command fails, or starts a new run with "
                                 "--resume=auto")
                       ->transform(value);
    app->add_option("--allow-change", mode->allow_change,
                    "With --resume: permit a change of this setting, or of data_fingerprint, "
                    "data_val_fingerprint, tokenizer_hash or teacher_revision (repeatable)")
        ->expected(1)
        ->take_all()
        ->needs(resume);
    app->add_flag("--overwrite", mode->overwrite, "Replace the run that run.dir holds")
        ->excludes(resume);
    return flags;
  }
};

}  // namespace taopd
