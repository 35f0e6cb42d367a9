#include "trainer/cli/config_flags.h"

#include <CLI/CLI.hpp>

namespace taopd {

void ConfigFlags::AddTo(CLI::App* app, bool required) {
  app->add_option("--config", path, "YAML file with the settings (see the configuration reference)")
      ->required(required);
  app->add_option("--set", overrides, "Override one setting, as section.key=value (repeatable)")
      ->expected(1)
      ->take_all();
}

absl::StatusOr<TrainConfig> ConfigFlags::ReadTrainConfig() const {
  TrainConfig config;
  TAOPD_RETURN_IF_ERROR(Read(&config));
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckTrainConfig(config)));
  return config;
}

std::shared_ptr<RunFlags> RunFlags::AddTo(CLI::App* app) {
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
  app->add_flag("--overwrite", mode->overwrite, "Replace the run in run.dir")->excludes(resume);
  return flags;
}

}  // namespace taopd
