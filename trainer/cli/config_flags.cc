#include "trainer/cli/config_flags.h"

#include <CLI/CLI.hpp>

#include "common/base/status.h"

namespace taopd {
namespace {

// `name` is the placeholder of the value in --help.
template <typename Holds>
CLI::Validator NumberCheck(const std::string& name, const std::string& what, Holds holds) {
  return CLI::Validator(
      [what, holds](std::string& input) {
        double value = 0.0;
        if (CLI::detail::lexical_cast(input, value) && holds(value)) return std::string();
        return Concat("must be ", what, ", got ", input);
      },
      name);
}

}  // namespace

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
                  "data_val_fingerprint, tokenizer_hash, teacher_revision or teacher_canary "
                  "(repeatable)")
      ->expected(1)
      ->take_all()
      ->needs(resume);
  app->add_flag("--overwrite", mode->overwrite, "Replace the run in run.dir")->excludes(resume);
  return flags;
}

CLI::Validator PositiveNumber() {
  return NumberCheck("POSITIVE", "a number above 0", [](double x) { return x > 0.0; });
}
CLI::Validator NonNegativeNumber() {
  return NumberCheck("NONNEGATIVE", "a number that is at least 0",
                     [](double x) { return x >= 0.0; });
}
CLI::Validator NumberIn(double low, double high) {
  return NumberCheck(Concat("in [", low, ", ", high, "]"), Concat("between ", low, " and ", high),
                     [low, high](double x) { return x >= low && x <= high; });
}

}  // namespace taopd
