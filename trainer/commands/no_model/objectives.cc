// The subcommand objectives: prints the objectives, for people and for docs/.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "taopd/objective/objective.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddObjectives(CLI::App& app) {
  CLI::App* command = app.add_subcommand("objectives", "List the objectives");
  auto formulas = std::make_shared<bool>(false);
  command->add_flag("--formulas", *formulas, "Print their formulas as a Markdown table");
  return {command, [formulas] {
            if (*formulas)
              std::cout << "| objective | loss | a | b_j | c |\n|---|---|---|---|---|\n";
            for (const ObjectiveInfo& row : AllObjectives()) {
              if (*formulas) {
                std::cout << "| `" << row.name << "` | " << row.formula << " |\n";
              } else {
                std::cout << row.name << "\n    " << row.summary << "\n";
              }
            }
            return absl::OkStatus();
          }};
}

}  // namespace taopd
