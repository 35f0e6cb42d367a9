// taopd-trainer eval: evaluates a model on held-out problems.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/number_checks.h"
#include "trainer/cli/subcommand.h"

namespace taopd {
namespace {

struct EvalFlags {
  ConfigFlags config;
  std::vector<std::string> data;
  EvalRequest request;
};

// Without a configuration file: the paper's evaluation with the model, the data and --set. Lengths
// are then the model's limits.
absl::Status ReadEvalConfig(const EvalFlags& flags, TrainConfig* config) {
  if (flags.config.path.empty()) {
    if (flags.request.model_dir.empty() && flags.request.endpoint.empty()) {
      return InvalidArgument("eval needs --model, --endpoint or --config");
    }
    config->student.model =
        flags.request.endpoint.empty() ? flags.request.model_dir : flags.request.endpoint;
    config->data.max_prompt_length = INT32_MAX;
    config->eval.grader = "auto";  // by data source, as the paper's evaluation
  }
  TAOPD_RETURN_IF_ERROR(flags.config.Read(config));
  if (!flags.data.empty()) config->data.val = flags.data;
  return CheckTrainConfig(*config);
}

// Says what is left of an evaluation that a signal ends.
std::string WhatIsKept(const TrainConfig& config, const EvalRequest& request) {
  if (config.eval.measure != EvalMeasure::kAccuracy)
    return "an evaluation of eval.measure kl keeps nothing";
  return "the responses so far are kept in " + ResponsesPath(request) +
         ", and the same command goes on from there";
}

}  // namespace

Subcommand AddEval(CLI::App& app) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command =
      app.add_subcommand("eval", "Evaluate a model, here or on a server, on held-out problems");
  flags->config.AddTo(command, /*required=*/false);
  EvalRequest& request = flags->request;
  request.output_path = "evaluation/results.json";
  command->add_option("--model", request.model_dir,
                      "Model directory; with --endpoint the server's model. Default: "
                      "student.model, or the server's first");
  command->add_option("--data", flags->data,
                      "JSON Lines or Parquet files of problems; default: data.val");
  command->add_option("--endpoint", request.endpoint,
                      "OpenAI-compatible server in place of a model in this process");
  command->add_option("--api-key-env", request.api_key_env,
                      "Environment variable of the API key; default: OPENAI_API_KEY");
  command->add_option("--concurrency", request.concurrency, "Requests in flight at the server")
      ->check(NumberIn(1, 1024))
      ->capture_default_str();
  command->add_option("--timeout", request.timeout_s, "Seconds for one attempt at one response")
      ->check(PositiveNumber())
      ->capture_default_str();
  command->add_option("--max-retries", request.max_retries, "Further attempts at a response")
      ->check(NonNegativeNumber())
      ->capture_default_str();
  command->add_option("--output", request.output_path, "The results as JSON")
      ->capture_default_str();
  command->add_option("--responses", request.responses_path,
                      "File of all responses as JSON Lines, from which an interrupted evaluation "
                      "continues. Default: beside the results");
  command->add_flag("--overwrite", request.overwrite,
                    "Replace the responses of another evaluation");
  return {command, [flags] {
            TrainConfig config;
            if (absl::Status status = ReadEvalConfig(*flags, &config); !status.ok())
              return EndCommand(BadUsage(status));
            EndOnSignals(WhatIsKept(config, flags->request));
            return EndCommand(RunEval(std::move(config), flags->request));
          }};
}

}  // namespace taopd
