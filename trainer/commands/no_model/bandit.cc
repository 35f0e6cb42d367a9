// The subcommand bandit: the paper's synthetic experiment.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "trainer/bandit/bandit.h"
#include "trainer/bandit/bandit_file.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

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
  command->option_defaults()->always_capture_default();
  command->add_option("--k", flags->options.k, "Number of tokens in the support");
  command->add_option("--steps", flags->options.steps, "Number of optimizer steps");
  command->add_option("--seed", flags->options.seed, "Seed of the initial logits and the draws");
  command->add_option("--support", flags->support,
                      "Model whose top-k tokens form the support: teacher, student or union");
  command->add_option("--learning-rate", flags->options.learning_rate, "AdamW's learning rate");
  command->add_option("--weight-decay", flags->options.weight_decay, "AdamW's weight decay");
  command->add_option("--record-every", flags->options.record_every,
                      "Number of steps between recorded points");
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

}  // namespace taopd
