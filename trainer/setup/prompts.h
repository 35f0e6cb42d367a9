// Loads the prompts that the sections data and eval of a configuration describe. The commands
// train, eval and data share this code.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/model/config/model_config.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/student/student.h"

namespace taopd {

// The properties of a model on which its prompts depend.
struct PromptModel {
  // If null, prompts must be token ids.
  const Tokenizer* tokenizer = nullptr;
  // Render prompts, and prompts with their responses. If null, there is no chat template, and
  // prompts must not be messages.
  RenderMessages render, render_finished;
  int64_t vocab_size = 0;
  int32_t eos_id = -1;  // ends a given response; -1: the model has none
  // True for a server, which renders and tokenizes: prompts stay text and messages, and nothing is
  // dropped or cut for its length.
  bool renders_itself = false;
};

// Describes the model that has this `config`. Uses the chat template of `model_dir` if there is one
// and data.apply_chat_template allows it. `tokenizer` must outlive the result. Returns
// INVALID_ARGUMENT if the chat template cannot be parsed.
absl::StatusOr<PromptModel> MakePromptModel(const DataConfig& data, const std::string& model_dir,
                                            const Tokenizer* tokenizer, const ModelConfig& config);
// Describes the model of `student`, which must outlive the result. Returns the same error.
absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student);

// Reads the config.json in `model_dir` or, if that is empty, the one at `config_path`.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir,
                                            const std::string& config_path);

// The parts of a model on which its data depends. No weights are loaded.
struct DescribedModel {
  ModelConfig config;
  std::string tokenizer_dir;             // empty without a tokenizer
  std::unique_ptr<Tokenizer> tokenizer;  // null without one
};
// Reads the model in `model_dir` or, if that is empty, a config.json. `tokenizer_dir` is another
// tokenizer, whose special tokens the model takes over; empty: the model's own.
absl::StatusOr<DescribedModel> DescribeModel(const std::string& model_dir,
                                             const std::string& config_path,
                                             const std::string& tokenizer_dir);

// The facts about the student's prompts that its files hold.
struct StudentPrompts {
  std::unique_ptr<Tokenizer> tokenizer;  // null if there is none; must outlive `model`
  PromptModel model;
};
// Reads student.model and student.tokenizer. Errors name the setting.
absl::StatusOr<StudentPrompts> ReadStudentPrompts(const StudentConfig& student,
                                                  const DataConfig& data);

// Returns how the rows of data.train are read. Errors are those of the templates of the section.
absl::StatusOr<DatasetOptions> TrainingDatasetOptions(const DataConfig& data,
                                                      const PromptModel& model);

struct TrainingPrompts {
  PromptDataset dataset;
  std::vector<DataShare> shares;  // of each file in an epoch
};

// Loads data.train. The message of an INVALID_ARGUMENT names a setting or a row.
absl::StatusOr<TrainingPrompts> LoadTrainingPrompts(const DataConfig& data,
                                                    const PromptModel& model);

// Loads data.val as eval.measure needs it, cut to eval.num_prompts. The result has no records if
// there is nothing to evaluate.
absl::StatusOr<PromptDataset> LoadEvalPrompts(const DataConfig& data, const EvalConfig& eval,
                                              const PromptModel& model);

// Parses data.chat_template_kwargs, a JSON object; an empty text means {}.
absl::StatusOr<nlohmann::ordered_json> ParseChatTemplateKwargs(const std::string& text);

// Checks the settings of prompts that do not depend on a model.
absl::Status CheckPromptSettings(const DataConfig& data, const EvalConfig& eval);

// Logs one line per file: its rows and prompts, and the numbers of over-long, cut and duplicate
// ones.
void LogDataset(const std::string& name, const PromptDataset& dataset);

}  // namespace taopd
