// The subcommand config: prints the settings of a program, for people and for docs/, or checks a
// configuration and prints all that it sets.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/config/sft_config.h"
#include "trainer/setup/prompts.h"

namespace taopd {

Subcommand AddConfig(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "config", "Print the configuration reference as Markdown, or check a configuration");
  auto program = std::make_shared<std::string>("train");
  command->add_option("program", *program, "Program whose settings are printed")
      ->check(CLI::IsMember({"train", "sft"}));
  auto flags = std::make_shared<ConfigFlags>();
  flags->AddTo(command, /*required=*/false);
  return {command, [program, flags]() -> absl::Status {
            TrainConfig train;
            SftConfig sft;
            const bool is_train = *program == "train";
            const bool is_given = !flags->path.empty() || !flags->overrides.empty();
            if (is_given && is_train) {
              TAOPD_ASSIGN_OR_RETURN(train, flags->ReadTrainConfig());
              TAOPD_RETURN_IF_ERROR(BadUsage(CheckPromptSettings(train.data, train.eval)));
            } else if (is_given) {
              TAOPD_RETURN_IF_ERROR(flags->Read(&sft));
              TAOPD_RETURN_IF_ERROR(BadUsage(sft.Check()));
            }
            const SettingTable table = is_train ? DescribeSettings(train) : DescribeSettings(sft);
            std::cout << (is_given ? WriteYamlSettings(table) : SettingsReference(table));
            return absl::OkStatus();
          }};
}

}  // namespace taopd
