// From the data and eval sections of a configuration to prompts, the same for train, eval and data.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/data/prompt_dataset.h"
#include "trainer/train_config.h"

namespace taopd {

// What prompts need of a model.
struct PromptModel {
  const Tokenizer* tokenizer = nullptr;  // null: prompts must be token ids
  RenderMessages render;                 // null: no chat template, prompts must not be messages
  int64_t vocab_size = 0;
  // A server that renders and tokenizes: prompts stay text and messages, and lengths are its
  // business.
  bool renders_itself = false;
};

// With the chat template of `model_dir`, where it has one and apply_chat_template may use it.
// `tokenizer` outlives the result. INVALID_ARGUMENT for a template that is none.
absl::StatusOr<PromptModel> MakePromptModel(const DataConfig& data, const std::string& model_dir,
                                            const Tokenizer* tokenizer, int64_t vocab_size);

// data.train, and its files as shares of an epoch. INVALID_ARGUMENT names a setting or a row.
struct TrainingPrompts {
  PromptDataset dataset;
  std::vector<DataShare> shares;
};
absl::StatusOr<TrainingPrompts> LoadTrainingPrompts(const DataConfig& data,
                                                    const PromptModel& model);

// data.val as eval.measure needs it, cut to eval.num_prompts; no records when there is nothing to
// evaluate.
absl::StatusOr<PromptDataset> LoadEvalPrompts(const DataConfig& data, const EvalConfig& eval,
                                              const PromptModel& model);

// An object; {} for an empty text. INVALID_ARGUMENT names data.chat_template_kwargs.
absl::StatusOr<nlohmann::ordered_json> ParseChatTemplateKwargs(const std::string& text);

// What can be checked of the settings before a model is there.
absl::Status CheckPromptSettings(const DataConfig& data, const EvalConfig& eval);

// A log line for each file: rows, prompts, over-long and duplicate ones.
void LogDataset(const std::string& name, const PromptDataset& dataset);

}  // namespace taopd
