// taopd-trainer bench-rollout: servers of rollouts without a run.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddBenchRollout(CLI::App& app) {
  struct Flags {
    ConfigFlags config;
    std::vector<std::string> endpoints;
    std::string model;
    BenchRolloutRequest request;
  };
  auto flags = std::make_shared<Flags>();
  BenchRolloutRequest& request = flags->request;
  CLI::App* command = app.add_subcommand(
      "bench-rollout", "Let servers of rollouts generate and measure them; replaces their weights");
  flags->config.AddTo(command, /*required=*/false);
  command->add_option("--endpoint", flags->endpoints,
                      "URL of a server; replaces rollout.endpoints (repeatable)");
  command->add_option("--model", flags->model,
                      "Directory of the weights to give them; replaces student.model");
  command->add_option("--requests", request.num_requests, "Responses of each server")
      ->check(PositiveNumber())
      ->capture_default_str();
  command->add_option("--prompt-tokens", request.prompt_tokens, "Length of the random prompts")
      ->check(PositiveNumber())
      ->capture_default_str();
  command->add_option("--response-tokens", request.response_tokens, "Largest length of a response")
      ->check(PositiveNumber())
      ->capture_default_str();
  command->add_option("--json", request.json_path, "The results as JSON");
  return {command, [flags] {
            TrainConfig config;
            config.student.model = "none";
            absl::Status status = flags->config.Read(&config);
            if (!flags->endpoints.empty()) config.rollout.endpoints = flags->endpoints;
            if (!flags->model.empty()) config.student.model = flags->model;
            status.Update(CheckTrainConfig(config));
            if (status.ok() && config.student.model == "none")
              status = InvalidArgument("--model or student.model must name a directory");
            if (status.ok() && !config.rollout.IsElsewhere())
              status = InvalidArgument("--endpoint or rollout.endpoints must name a server");
            if (!status.ok()) return EndCommand(BadUsage(status));
            return EndCommand(RunBenchRollout(config, flags->request));
          }};
}

}  // namespace taopd
