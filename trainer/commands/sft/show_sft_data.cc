// The subcommand data with --sft: shows data.train and data.val as supervised training would load
// them, and which tokens are learned. No weights are read.

#include <cstdio>

#include "common/io/file.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/sft/sft_data.h"
#include "trainer/data/dataset_summary.h"
#include "trainer/run/exit_status.h"
#include "trainer/student/student_tokenizer.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// The parts of a model on which the data depends; no weights are loaded.
struct DescribedModel {
  ModelConfig config;
  std::string tokenizer_dir;             // empty without a tokenizer
  std::unique_ptr<Tokenizer> tokenizer;  // null without one
};

absl::StatusOr<DescribedModel> Describe(const SftModelConfig& settings) {
  DescribedModel model;
  if (settings.init.empty()) {
    TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(settings.config));
    TAOPD_ASSIGN_OR_RETURN(model.config, ParseModelConfig(text, settings.config));
  } else {
    TAOPD_ASSIGN_OR_RETURN(model.config, LoadModelConfig(settings.init));
  }
  const bool is_own = settings.tokenizer.empty();
  model.tokenizer_dir = is_own ? settings.init : settings.tokenizer;
  if (model.tokenizer_dir.empty()) return model;
  auto tokenizer = Tokenizer::Load(model.tokenizer_dir);
  if (is_own && absl::IsNotFound(tokenizer.status())) {
    model.tokenizer_dir.clear();
    return model;
  }
  TAOPD_RETURN_IF_ERROR(tokenizer.status());
  model.tokenizer = *std::move(tokenizer);
  if (is_own || settings.init.empty()) return model;
  // The model takes over the other tokenizer's special tokens.
  TAOPD_ASSIGN_OR_RETURN(const VocabularyChange change,
                         ReadVocabularyChange(model.tokenizer_dir, *model.tokenizer));
  TAOPD_RETURN_IF_ERROR(ChangeVocabulary(change, &model.config));
  return model;
}

}  // namespace

absl::Status RunShowSftData(const SftConfig& config, const ShowDataRequest& request) {
  const auto model = Describe(config.model);
  if (!model.ok()) return BadData(Annotate(model.status(), "model"));
  const auto data =
      LoadSftData(config.data, model->config, model->tokenizer_dir, model->tokenizer.get());
  if (!data.ok()) return data.status();
  const SummaryOptions options{{}, request.num_samples, model->tokenizer.get()};
  Json parts = Json::array();
  Json& train = parts.emplace_back(DatasetSummaryJson("data.train", data->train, options));
  train["steps_per_epoch"] = static_cast<double>(data->train.records.size()) /
                             static_cast<double>(config.trainer.batch_size);
  if (!data->val.records.empty())
    parts.push_back(DatasetSummaryJson("data.val", data->val, options));
  if (request.json) {
    std::printf("%s\n",
                Json{{"model", config.model.init.empty() ? config.model.config : config.model.init},
                     {"data", parts}}
                    .dump(2, ' ', false, Json::error_handler_t::replace)
                    .c_str());
  } else {
    for (const Json& part : parts) {
      std::printf("%s", DatasetSummaryText(part).c_str());
      if (part.contains("steps_per_epoch")) {
        std::printf(
            "  an epoch: %.1f steps, in which the %lld tokens of the responses are learned\n",
            part["steps_per_epoch"].get<double>(),
            part["response_tokens"]["total"].get<long long>());
      }
    }
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace taopd
