// Small subcommands: config and objectives print the settings and the objectives, for people and
// for the generated pages of docs/; objective evaluates the cases of a file; bandit is the paper's
// synthetic experiment; report makes one page on one or several runs.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>

#include "common/config/yaml.h"
#include "taopd/objective/objective.h"
#include "trainer/bandit/bandit.h"
#include "trainer/bandit/bandit_file.h"
#include "trainer/cli/subcommand.h"
#include "trainer/config/sft_config.h"
#include "trainer/config/train_config.h"
#include "trainer/objective/objective_cases.h"
#include "trainer/report/report.h"

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

Subcommand AddBandit(CLI::App& app) {
  struct Flags {
    std::vector<std::string> objectives;
    std::string support = "teacher", output_path;
    bandit::Options options;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "bandit", "Run the paper's 30-armed bandit under one or several objectives");
  command->add_option("--objective", flags->objectives, "Names of objectives, separated by commas")
      ->required()
      ->delimiter(',');
  command->add_option("--k", flags->options.k, "Number of tokens in the support")
      ->capture_default_str();
  command->add_option("--steps", flags->options.steps, "Number of optimizer steps")
      ->capture_default_str();
  command->add_option("--seed", flags->options.seed, "Seed of the initial logits and the draws")
      ->capture_default_str();
  command
      ->add_option("--support", flags->support,
                   "Model whose top-k tokens form the support: teacher, student or union")
      ->capture_default_str();
  command->add_option("--learning-rate", flags->options.learning_rate, "AdamW's learning rate")
      ->capture_default_str();
  command->add_option("--weight-decay", flags->options.weight_decay, "AdamW's weight decay")
      ->capture_default_str();
  command
      ->add_option("--record-every", flags->options.record_every,
                   "Number of steps between recorded points")
      ->capture_default_str();
  command
      ->add_option("--output", flags->output_path, "JSON file of the results, which `report` reads")
      ->required();
  return {command, [flags]() -> absl::Status {
            TAOPD_ASSIGN_OR_RETURN(flags->options.support,
                                   BadUsage(bandit::ParseSupport(flags->support)));
            TAOPD_ASSIGN_OR_RETURN(const auto result,
                                   BadUsage(bandit::RunBandit(flags->objectives, flags->options)));
            TAOPD_RETURN_IF_ERROR(BadData(bandit::WriteResult(result, flags->output_path)));
            std::printf("%-20s %12s %14s %14s\n", "objective", "full KL", "student tail",
                        "teacher tail");
            for (const bandit::ObjectiveRun& run : result.runs) {
              const bandit::TrajectoryPoint& end = run.trajectory.back();
              std::printf("%-20s %12.3g %14.5f %14.5f\n", run.objective.c_str(), end.full_kl,
                          end.student_tail, result.teacher_tail);
            }
            return absl::OkStatus();
          }};
}

Subcommand AddReport(CLI::App& app) {
  struct Flags {
    std::vector<std::string> run_dirs;
    std::string output_path;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "report", "Write one self-contained HTML page about runs and results of `bandit`");
  command->add_option("run_dirs", flags->run_dirs, "Run directories, and result files of `bandit`")
      ->required();
  command->add_option("-o,--output", flags->output_path, "HTML file of the page")->required();
  return {command,
          [flags] { return BadData(report::WriteReport(flags->run_dirs, flags->output_path)); }};
}

}  // namespace taopd
