// taopd-trainer: the command line. Parses, checks, runs, and turns failures into exit codes.

#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <thread>

#include "common/base/log.h"
#include "common/config/yaml.h"
#include "taopd/objective.h"
#include "trainer/report/report.h"
#include "trainer/run/commands.h"

namespace taopd {
namespace {

// SIGTERM and SIGINT end the step in progress, save and exit with 75; a second one ends at once, and
// the newest checkpoint stays. Signals are taken by one thread, so nothing runs in a handler.
void HandleSignals(RunState* state) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every later thread
  std::thread([signals, state] {
    int signal = 0;
    sigwait(&signals, &signal);
    LogInfo("stopping after this step", {{"signal", signal}});
    state->RequestStop();
    sigwait(&signals, &signal);
    LogWarning("ending at once; the newest checkpoint stays", {{"signal", signal}});
    _exit(static_cast<int>(ExitCode::kStopped));
  }).detach();
}

int End(const std::optional<RunFailure>& failure) {
  if (!failure) return static_cast<int>(ExitCode::kFinished);
  std::cout.flush();
  if (failure->code == ExitCode::kStopped) {
    LogInfo("stopped", {{"reason", std::string(failure->status.message())}});
  } else {
    std::fprintf(stderr, "taopd-trainer: %s\n", std::string(failure->status.message()).c_str());
  }
  return static_cast<int>(failure->code);
}

int EndBadConfig(const absl::Status& status) { return End(BadConfig(status)); }

// The file, then the overrides, then the checks of each setting.
template <typename Config>
absl::Status ReadConfig(const std::string& path, const std::vector<std::string>& overrides, Config* config) {
  const SettingTable table = DescribeSettings(*config);
  if (!path.empty()) TAOPD_RETURN_IF_ERROR(ReadYamlFile(path, table));
  for (const std::string& assignment : overrides) TAOPD_RETURN_IF_ERROR(ApplyOverride(assignment, table));
  return CheckSettings(DescribeSettings(*config));
}

struct ConfigFlags {
  std::string path;
  std::vector<std::string> overrides;
  void AddTo(CLI::App* app) {
    app->add_option("--config", path, "YAML file; see the configuration reference")->required();
    app->add_option("--set", overrides, "Override a setting: section.key=value (repeatable)")->expected(1)->take_all();
  }
};

void AddStartFlags(CLI::App* app, StartMode* mode) {
  auto* resume = app->add_flag("--resume", mode->resume, "Continue from the newest complete checkpoint of run.dir");
  app->add_flag("--overwrite", mode->overwrite, "Replace the run that run.dir holds")->excludes(resume);
}

void AddGenerateFlags(CLI::App* app, GenerateRequest* request) {
  app->add_option("--model", request->model_dir, "Hugging Face model directory")->required();
  auto* prompt = app->add_option("--prompt", request->prompt, "Text to continue");
  app->add_option("--prompt-ids", request->prompt_ids, "Token ids to continue")->excludes(prompt);
  app->add_option("--max-new-tokens", request->max_new_tokens, "Most tokens to generate")
      ->check(CLI::PositiveNumber)->capture_default_str();
  app->add_option("--temperature", request->temperature, "0 = greedy")->check(CLI::NonNegativeNumber)->capture_default_str();
  app->add_option("--top-p", request->top_p, "Nucleus sampling; 1 = off")->check(CLI::Range(1e-9, 1.0))->capture_default_str();
  app->add_option("--top-k", request->top_k, "0 = off")->check(CLI::NonNegativeNumber)->capture_default_str();
  app->add_option("--seed", request->seed, "Seed of the sampling")->check(CLI::NonNegativeNumber)->capture_default_str();
  app->add_option("--dtype", request->dtype, "auto, float32, bfloat16")->capture_default_str();
  app->add_option("--device", request->device, "auto, cpu, cuda, cuda:1")->capture_default_str();
}

void PrintObjectives() {
  for (const ObjectiveInfo& row : AllObjectives()) std::cout << row.name << "\n    " << row.summary << "\n";
}

int Main(int argc, char** argv) {
  CLI::App app{"taopd-trainer: trains a small language model on its own generations under a teacher"};
  app.require_subcommand(1);
  std::string log_level = "info";
  app.add_option("--log-level", log_level, "debug, info, warning or error")->capture_default_str();

  ConfigFlags config_flags;
  StartMode mode;
  CLI::App* train = app.add_subcommand("train", "On-policy distillation, a daemon per experiment");
  config_flags.AddTo(train);
  AddStartFlags(train, &mode);
  CLI::App* sft = app.add_subcommand("sft", "Supervised training on prompt/response pairs");
  config_flags.AddTo(sft);
  AddStartFlags(sft, &mode);
  CLI::App* eval = app.add_subcommand("eval", "Evaluate a model on the data.val of a training configuration");
  config_flags.AddTo(eval);
  EvalRequest eval_request;
  eval->add_option("--model", eval_request.model_dir, "Model directory; default: student.model of the configuration");
  eval->add_option("--output", eval_request.output_path, "Write the results as JSON");
  eval->add_option("--responses", eval_request.responses_path, "Write every response as JSONL");
  CLI::App* generate = app.add_subcommand("generate", "Continue a prompt, streamed to the terminal");
  GenerateRequest generate_request;
  AddGenerateFlags(generate, &generate_request);
  CLI::App* report = app.add_subcommand("report", "One self-contained HTML page of one or several runs");
  std::vector<std::string> run_dirs;
  std::string report_path;
  report->add_option("run_dirs", run_dirs, "Run directories")->required();
  report->add_option("-o,--output", report_path, "The page")->required();
  CLI::App* settings = app.add_subcommand("config", "Print the configuration reference as Markdown");
  std::string settings_of = "train";
  settings->add_option("program", settings_of, "train or sft")->check(CLI::IsMember({"train", "sft"}));
  CLI::App* objectives = app.add_subcommand("objectives", "List the objectives");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kBadConfig);
  }
  if (absl::Status status = SetLogLevel(log_level); !status.ok()) return EndBadConfig(status);

  if (*train || *eval) {
    TrainConfig config;
    absl::Status status = ReadConfig(config_flags.path, config_flags.overrides, &config);
    if (status.ok()) status = CheckTrainConfig(config);
    if (!status.ok()) return EndBadConfig(status);
    if (*eval) return End(RunEval(std::move(config), eval_request));
    RunState state;
    HandleSignals(&state);
    return End(RunTraining(std::move(config), mode, &state));
  }
  if (*sft) {
    SftConfig config;
    if (absl::Status status = ReadConfig(config_flags.path, config_flags.overrides, &config); !status.ok()) {
      return EndBadConfig(status);
    }
    RunState state;
    HandleSignals(&state);
    return End(RunSft(std::move(config), mode, &state));
  }
  if (*generate) return End(RunGenerate(generate_request));
  if (*report) {
    const absl::Status status = WriteReport(run_dirs, report_path);
    return status.ok() ? End(std::nullopt) : End(BadData(status));
  }
  if (*settings) {
    TrainConfig train_config;
    SftConfig sft_config;
    std::cout << SettingsReference(settings_of == "train" ? DescribeSettings(train_config) : DescribeSettings(sft_config));
    return 0;
  }
  if (*objectives) PrintObjectives();
  return 0;
}

}  // namespace
}  // namespace taopd

int main(int argc, char** argv) { return taopd::Main(argc, argv); }
