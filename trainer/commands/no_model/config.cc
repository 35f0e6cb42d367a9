// The subcommand config: prints the settings of a program, for people and for docs/.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "common/config/yaml.h"
#include "trainer/cli/subcommand.h"
#include "trainer/config/sft_config.h"
#include "trainer/config/train_config.h"

namespace taopd {

Subcommand AddConfig(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config", "Print the configuration reference as Markdown");
  auto program = std::make_shared<std::string>("train");
  command->add_option("program", *program, "Program whose settings are printed")
      ->check(CLI::IsMember({"train", "sft"}));
  return {command, [program] {
            TrainConfig train;
            SftConfig sft;
            std::cout << SettingsReference(*program == "train" ? DescribeSettings(train)
                                                               : DescribeSettings(sft));
            return absl::OkStatus();
          }};
}

}  // namespace taopd
