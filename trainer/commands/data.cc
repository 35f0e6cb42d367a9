// The subcommand data: shows data.train and data.val as a run of train or sft would load them. No
// weights are read.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/sft/sft_data.h"
#include "trainer/data/dataset_summary.h"
#include "trainer/setup/prompts.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

struct DataFlags {
  ConfigFlags config;
  bool sft = false;
  bool json = false;
  int64_t num_samples = 3;
};

// Prints the summaries of data.train and data.val. `print_epoch` prints a line for the part that
// has epochs.
void PrintParts(const DataFlags& flags, const char* kind, const std::string& model,
                const Json& parts, void (*print_epoch)(const Json& part)) {
  if (flags.json) {
    const Json whole = {{kind, model}, {"data", parts}};
    std::printf("%s\n", whole.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return;
  }
  for (const Json& part : parts) {
    std::printf("%s", DatasetSummaryText(part).c_str());
    if (part.contains("steps_per_epoch")) print_epoch(part);
  }
}

absl::Status ShowData(const DataFlags& flags) {
  TAOPD_ASSIGN_OR_RETURN(const TrainConfig config, flags.config.ReadTrainConfig());
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckPromptSettings(config.data, config.eval)));
  TAOPD_ASSIGN_OR_RETURN(const StudentPrompts prompts,
                         BadData(ReadStudentPrompts(config.student, config.data)));
  Json parts = Json::array();
  if (!config.data.train.empty()) {
    TAOPD_ASSIGN_OR_RETURN(
        const TrainingPrompts training,
        BadData(Annotate(LoadTrainingPrompts(config.data, prompts.model), "data.train")));
    SummaryOptions options{config.data.train_weights, flags.num_samples};
    Json& part = parts.emplace_back(DatasetSummaryJson("data.train", training.dataset, options));
    const int64_t epoch_size = EpochOrder(training.shares, 0, /*shuffle=*/false).epoch_size();
    part["epoch_prompts"] = epoch_size;
    part["steps_per_epoch"] =
        static_cast<double>(epoch_size) / static_cast<double>(config.data.train_batch_size);
  }
  TAOPD_ASSIGN_OR_RETURN(
      const PromptDataset evaluation,
      BadData(Annotate(LoadEvalPrompts(config.data, config.eval, prompts.model), "data.val")));
  if (!evaluation.records.empty()) {
    parts.push_back(
        DatasetSummaryJson("data.val", evaluation, SummaryOptions{{}, flags.num_samples}));
  }
  if (parts.empty())
    return BadUsage(InvalidArgument("nothing to show: data.train and data.val are empty"));
  PrintParts(flags, "student", config.student.model, parts, [](const Json& part) {
    std::printf("  an epoch: %lld prompts, %.1f steps\n", part["epoch_prompts"].get<long long>(),
                part["steps_per_epoch"].get<double>());
  });
  return absl::OkStatus();
}

// The same for sft, with the number of tokens that are learned.
absl::Status ShowSftData(const DataFlags& flags) {
  SftConfig config;
  TAOPD_RETURN_IF_ERROR(flags.config.Read(&config));
  TAOPD_ASSIGN_OR_RETURN(
      const DescribedModel model,
      BadData(Annotate(
          DescribeModel(config.model.init, config.model.config, config.model.tokenizer), "model")));
  TAOPD_ASSIGN_OR_RETURN(
      const SftData data,
      LoadSftData(config.data, model.config, model.tokenizer_dir, model.tokenizer.get()));
  const SummaryOptions options{{}, flags.num_samples, model.tokenizer.get()};
  Json parts = Json::array();
  Json& train = parts.emplace_back(DatasetSummaryJson("data.train", data.train, options));
  train["steps_per_epoch"] = static_cast<double>(data.train.records.size()) /
                             static_cast<double>(config.trainer.batch_size);
  if (!data.val.records.empty()) parts.push_back(DatasetSummaryJson("data.val", data.val, options));
  const std::string& name = config.model.init.empty() ? config.model.config : config.model.init;
  PrintParts(flags, "model", name, parts, [](const Json& part) {
    std::printf("  an epoch: %.1f steps, in which the %lld tokens of the responses are learned\n",
                part["steps_per_epoch"].get<double>(),
                part["response_tokens"]["total"].get<long long>());
  });
  return absl::OkStatus();
}

}  // namespace

Subcommand AddData(CLI::App& app) {
  auto flags = std::make_shared<DataFlags>();
  CLI::App* command = app.add_subcommand(
      "data", "Show the data of a configuration: counts by file and source, lengths, and samples");
  flags->config.AddTo(command);
  command->add_flag("--sft", flags->sft,
                    "Read a configuration of sft, and also show which tokens are learned");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command
      ->add_option("--samples", flags->num_samples,
                   "Rendered prompts to show of data.train and of data.val")
      ->check(NumberIn(0, 1000))
      ->capture_default_str();
  return {command, [flags] {
            const absl::Status shown = flags->sft ? ShowSftData(*flags) : ShowData(*flags);
            std::fflush(stdout);
            return shown;
          }};
}

}  // namespace taopd
