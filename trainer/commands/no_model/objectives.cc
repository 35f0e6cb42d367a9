// The subcommands about objectives: objectives prints the list of them, for people and for docs/,
// and objective evaluates the cases of a file.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "taopd/objective/objective.h"
#include "trainer/cli/subcommand.h"
#include "trainer/objective/objective_cases.h"

namespace taopd {

Subcommand AddObjectives(CLI::App& app) {
  CLI::App* command = app.add_subcommand("objectives", "List the objectives");
  auto formulas = std::make_shared<bool>(false);
  command->add_flag("--formulas", *formulas, "Print their formulas as a Markdown table");
  return {command, [formulas] {
            if (*formulas)
              std::cout << "| objective | loss | a | b_j | c |\n|---|---|---|---|---|\n";
            for (const ObjectiveInfo& row : kObjectives) {
              if (*formulas) {
                std::cout << "| `" << row.name << "` | " << row.formula << " |\n";
              } else {
                std::cout << row.name << "\n    " << row.summary << "\n";
              }
            }
            return absl::OkStatus();
          }};
}

Subcommand AddObjective(CLI::App& app) {
  struct Flags {
    std::string input_path, output_path;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "objective", "Compute the losses and gradients of cases from a JSON Lines file, in float64");
  command->add_option("--input", flags->input_path, "File of cases, one JSON object per line")
      ->required();
  command
      ->add_option("--output", flags->output_path,
                   "File of the results, one per line, which is replaced")
      ->required();
  return {
      command, [flags]() -> absl::Status {
        TAOPD_ASSIGN_OR_RETURN(const auto summary, BadData(EvaluateObjectiveCases(
                                                       flags->input_path, flags->output_path)));
        std::cout << summary.num_cases << " cases, " << summary.num_refused << " refused";
        if (summary.num_expected > 0) {
          std::cout << "; " << summary.num_expected
                    << " with expected values, largest difference: loss "
                    << summary.max_loss_difference << ", grad " << summary.max_grad_difference;
        }
        std::cout << "\n";
        if (summary.num_refused == 0) return absl::OkStatus();
        return BadData(InvalidArgument(summary.num_refused, " of ", summary.num_cases,
                                       " cases refused; see \"error\" in ", flags->output_path));
      }};
}

}  // namespace taopd
