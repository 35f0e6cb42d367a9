// The subcommand data: shows data.train and data.val as a run would load them. No weights are read.

#include <cstdio>

#include "trainer/commands/commands.h"
#include "trainer/commands/prompts.h"
#include "trainer/data/dataset_summary.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

absl::Status RunShowData(const TrainConfig& config, const ShowDataRequest& request) {
  if (absl::Status checked = CheckPromptSettings(config.data, config.eval); !checked.ok())
    return BadUsage(checked);
  const std::string& model_dir = config.student.model;
  const auto prompts = ReadStudentPrompts(config.student, config.data);
  if (!prompts.ok()) return BadData(prompts.status());
  const PromptModel& model = prompts->model;

  Json parts = Json::array();
  if (!config.data.train.empty()) {
    auto training = LoadTrainingPrompts(config.data, model);
    if (!training.ok()) return BadData(Annotate(training.status(), "data.train"));
    SummaryOptions options{config.data.train_weights, request.num_samples};
    Json& part = parts.emplace_back(DatasetSummaryJson("data.train", training->dataset, options));
    const int64_t epoch_size = EpochOrder(training->shares, 0, /*shuffle=*/false).epoch_size();
    part["epoch_prompts"] = epoch_size;
    part["steps_per_epoch"] =
        static_cast<double>(epoch_size) / static_cast<double>(config.data.train_batch_size);
  }
  auto evaluation = LoadEvalPrompts(config.data, config.eval, model);
  if (!evaluation.ok()) return BadData(Annotate(evaluation.status(), "data.val"));
  if (!evaluation->records.empty()) {
    parts.push_back(
        DatasetSummaryJson("data.val", *evaluation, SummaryOptions{{}, request.num_samples}));
  }
  if (parts.empty())
    return BadUsage(InvalidArgument("nothing to show: data.train and data.val are empty"));
  if (request.json) {
    std::printf("%s\n", Json{{"student", model_dir}, {"data", parts}}
                            .dump(2, ' ', false, Json::error_handler_t::replace)
                            .c_str());
  } else {
    for (const Json& part : parts) {
      std::printf("%s", DatasetSummaryText(part).c_str());
      if (part.contains("epoch_prompts")) {
        std::printf("  an epoch: %lld prompts, %.1f steps\n",
                    part["epoch_prompts"].get<long long>(), part["steps_per_epoch"].get<double>());
      }
    }
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace taopd
