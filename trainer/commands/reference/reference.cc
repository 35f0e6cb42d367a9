// taopd-trainer config and objectives: print the settings and the objectives, for people and for
// the generated pages of docs/.
#include <iostream>
#include <memory>

#include "common/config/yaml.h"
#include "taopd/objective/objective.h"
#include "trainer/cli/subcommand.h"
#include "trainer/config/sft_config.h"
#include "trainer/config/train_config.h"

namespace taopd {

Subcommand AddConfig(CLI::App& app) {
  CLI::App* command = app.add_subcommand("config", "Print the configuration reference as Markdown");
  auto program = std::make_shared<std::string>("train");
  command->add_option("program", *program, "train or sft")->check(CLI::IsMember({"train", "sft"}));
  return {command, [program] {
            TrainConfig train;
            SftConfig sft;
            std::cout << SettingsReference(*program == "train" ? DescribeSettings(train)
                                                               : DescribeSettings(sft));
            return absl::OkStatus();
          }};
}

Subcommand AddObjectives(CLI::App& app) {
  return {app.add_subcommand("objectives", "List the objectives"), [] {
            for (const ObjectiveInfo& row : AllObjectives())
              std::cout << row.name << "\n    " << row.summary << "\n";
            return absl::OkStatus();
          }};
}

}  // namespace taopd
