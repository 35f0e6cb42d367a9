// taopd-trainer eval: evaluates a model on held-out problems.
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddEval(CLI::App& app) {
  struct Flags {
    ConfigFlags config;
    EvalRequest request;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand("eval", "Evaluate a model on the data.val of a training configuration");
  flags->config.AddTo(command);
  EvalRequest& request = flags->request;
  command->add_option("--model", request.model_dir, "Model directory; default: student.model of the configuration");
  command->add_option("--output", request.output_path, "Write the results as JSON");
  command->add_option("--responses", request.responses_path, "Write every response as JSONL");
  return {command, [flags] {
            TrainConfig config;
            absl::Status status = flags->config.Read(&config);
            if (status.ok()) status = CheckTrainConfig(config);
            if (!status.ok()) return EndCommand(BadConfig(status));
            return EndCommand(RunEval(std::move(config), flags->request));
          }};
}

}  // namespace taopd
