#include "trainer/setup/prompts.h"

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/text/chat/chat_template.h"
#include "trainer/eval/accuracy.h"

namespace taopd {
namespace {

DatasetOptions MakeOptions(const DataConfig& data, const PromptModel& model) {
  DatasetOptions options;
  options.prompt_key = data.prompt_key;
  options.answer_key = data.answer_key;
  options.source_key = data.source_key;
  options.text_as_chat = data.apply_chat_template == ChatTemplateUse::kAlways;
  options.messages_as_text = data.apply_chat_template == ChatTemplateUse::kNever;
  options.render = model.render;
  options.render_finished = model.render_finished;
  options.tokenize = !model.renders_itself;
  options.add_special_tokens = data.add_special_tokens;
  options.max_prompt_length = data.max_prompt_length;
  options.filter_overlong_prompts = data.filter_overlong_prompts;
  options.truncation = data.truncation;
  options.vocab_size = model.renders_itself ? INT32_MAX : model.vocab_size;
  return options;
}

TeacherPromptOptions TeacherPromptOptionsOf(const DataConfig& data) {
  return {.key = data.teacher_prompt_key,
          .row_template = RowTemplate(data.teacher_prompt_template),
          .missing = data.teacher_prompt_missing,
          .max_length = data.MaxTeacherPromptLength(),
          .sibling_length = data.max_response_length};
}

absl::StatusOr<PromptTemplate> SectionTemplate(const std::string& section,
                                               const std::string& prompt_template,
                                               const std::string& system_prompt) {
  return Annotate(MakePromptTemplate(prompt_template, system_prompt), section);
}

}  // namespace

absl::StatusOr<PromptModel> MakePromptModel(const DataConfig& data, const std::string& model_dir,
                                            const Tokenizer* tokenizer, const ModelConfig& config) {
  PromptModel model;
  model.tokenizer = tokenizer;
  model.vocab_size = config.vocab_size;
  if (!config.eos_token_ids.empty()) model.eos_id = config.eos_token_ids.front();
  if (model_dir.empty() || data.apply_chat_template == ChatTemplateUse::kNever) return model;
  auto chat_template = ChatTemplate::Load(model_dir);
  if (absl::IsNotFound(chat_template.status())) return model;
  TAOPD_RETURN_IF_ERROR(chat_template.status());
  ChatOptions options;
  TAOPD_ASSIGN_OR_RETURN(options.kwargs, ParseChatTemplateKwargs(data.chat_template_kwargs));
  const auto shared = std::make_shared<const ChatTemplate>(*std::move(chat_template));
  const auto renderer = [&](bool add_generation_prompt) -> RenderMessages {
    options.add_generation_prompt = add_generation_prompt;
    return
        [shared, options](const nlohmann::ordered_json& messages) -> absl::StatusOr<std::string> {
          TAOPD_ASSIGN_OR_RETURN(jinja::Rendering rendering, shared->Render(messages, options));
          return std::move(rendering.text);
        };
  };
  model.render = renderer(true);
  model.render_finished = renderer(false);
  return model;
}

absl::StatusOr<PromptModel> PromptModelOf(const DataConfig& data, const Student& student) {
  return MakePromptModel(data, student.tokenizer_dir, student.tokenizer.get(),
                         student.decoder->config());
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& model_dir,
                                            const std::string& config_path) {
  if (!model_dir.empty()) return LoadModelConfig(model_dir);
  TAOPD_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(config_path));
  return ParseModelConfig(text, config_path);
}

absl::StatusOr<DescribedModel> DescribeModel(const std::string& model_dir,
                                             const std::string& config_path,
                                             const std::string& tokenizer_dir) {
  DescribedModel model;
  TAOPD_ASSIGN_OR_RETURN(model.config, ReadModelConfig(model_dir, config_path));
  const bool is_own = tokenizer_dir.empty();
  model.tokenizer_dir = is_own ? model_dir : tokenizer_dir;
  if (model.tokenizer_dir.empty()) return model;
  auto tokenizer = Tokenizer::Load(model.tokenizer_dir);
  if (is_own && absl::IsNotFound(tokenizer.status())) {
    model.tokenizer_dir.clear();
    return model;
  }
  TAOPD_RETURN_IF_ERROR(tokenizer.status());
  model.tokenizer = *std::move(tokenizer);
  if (is_own || model_dir.empty()) return model;
  TAOPD_ASSIGN_OR_RETURN(const VocabularyChange change,
                         ReadVocabularyChange(tokenizer_dir, *model.tokenizer));
  TAOPD_RETURN_IF_ERROR(ChangeVocabulary(change, &model.config));
  return model;
}

absl::StatusOr<StudentPrompts> ReadStudentPrompts(const StudentConfig& student,
                                                  const DataConfig& data) {
  TAOPD_ASSIGN_OR_RETURN(
      DescribedModel described,
      Annotate(DescribeModel(student.model, /*config_path=*/"", student.tokenizer),
               "student.model"));
  StudentPrompts prompts;
  prompts.tokenizer = std::move(described.tokenizer);
  TAOPD_ASSIGN_OR_RETURN(prompts.model,
                         Annotate(MakePromptModel(data, described.tokenizer_dir,
                                                  prompts.tokenizer.get(), described.config),
                                  "student.model"));
  return prompts;
}

absl::StatusOr<DatasetOptions> TrainingDatasetOptions(const DataConfig& data,
                                                      const PromptModel& model) {
  DatasetOptions options = MakeOptions(data, model);
  TAOPD_ASSIGN_OR_RETURN(options.prompt_template,
                         SectionTemplate("data", data.prompt_template, data.system_prompt));
  options.teacher = TeacherPromptOptionsOf(data);
  options.response_key = data.response_key;
  options.append_eos_id = model.eos_id;
  return options;
}

absl::StatusOr<TrainingPrompts> LoadTrainingPrompts(const DataConfig& data,
                                                    const PromptModel& model) {
  TAOPD_ASSIGN_OR_RETURN(const DatasetOptions options, TrainingDatasetOptions(data, model));
  if (data.HasSibling() && model.tokenizer == nullptr) {
    return InvalidArgument(
        "data.teacher_prompt_template has {sibling}, whose text needs a tokenizer.json in the "
        "student's directory");
  }
  TrainingPrompts prompts;
  TAOPD_ASSIGN_OR_RETURN(prompts.dataset, LoadPrompts(data.train, model.tokenizer, options));
  for (const PromptRecord& record : prompts.dataset.records) {
    const auto length = static_cast<int64_t>(record.response_ids.size());
    if (length <= data.max_response_length) continue;
    return InvalidArgument(record.id, ": the response of data.response_key has ", length,
                           " tokens, more than data.max_response_length ",
                           data.max_response_length);
  }
  TAOPD_ASSIGN_OR_RETURN(prompts.shares, Annotate(WeighFiles(prompts.dataset, data.train_weights),
                                                  "data.train_weights"));
  return prompts;
}

absl::StatusOr<PromptDataset> LoadEvalPrompts(const DataConfig& data, const EvalConfig& eval,
                                              const PromptModel& model) {
  if (eval.measure == EvalMeasure::kNone || data.val.empty()) return PromptDataset();
  if (eval.measure == EvalMeasure::kAccuracy && model.tokenizer == nullptr &&
      !model.renders_itself) {
    return InvalidArgument(
        "eval.measure accuracy needs a tokenizer.json in the student's directory");
  }
  DatasetOptions options = MakeOptions(data, model);
  TAOPD_ASSIGN_OR_RETURN(options.prompt_template,
                         SectionTemplate("eval", eval.prompt_template, eval.system_prompt));
  if (eval.measure == EvalMeasure::kKl) {
    options.response_key = "response";
    options.teacher = TeacherPromptOptionsOf(data);
  }
  TAOPD_ASSIGN_OR_RETURN(PromptDataset dataset, LoadPrompts(data.val, model.tokenizer, options));
  const auto available = static_cast<int64_t>(dataset.records.size());
  if (eval.num_prompts > available) {
    return InvalidArgument("eval.num_prompts ", eval.num_prompts, " exceeds the ", available,
                           " rows of data.val");
  }
  if (eval.num_prompts > 0) dataset.records.resize(eval.num_prompts);
  for (const PromptRecord& record : dataset.records) {
    if (eval.measure == EvalMeasure::kAccuracy && record.answer.empty() &&
        !eval.IsJudgedByServer()) {
      return InvalidArgument(record.id, ": no \"", data.answer_key, "\" to grade against");
    }
  }
  return dataset;
}

absl::StatusOr<nlohmann::ordered_json> ParseChatTemplateKwargs(const std::string& text) {
  if (text.empty()) return nlohmann::ordered_json::object();
  TAOPD_ASSIGN_OR_RETURN(nlohmann::ordered_json kwargs,
                         ParseOrderedJson(text, "data.chat_template_kwargs"));
  if (!kwargs.is_object())
    return InvalidArgument("data.chat_template_kwargs: ", text, " is not a JSON object");
  return kwargs;
}

absl::Status CheckPromptSettings(const DataConfig& data, const EvalConfig& eval) {
  TAOPD_RETURN_IF_ERROR(SectionTemplate("data", data.prompt_template, data.system_prompt).status());
  TAOPD_RETURN_IF_ERROR(SectionTemplate("eval", eval.prompt_template, eval.system_prompt).status());
  TAOPD_RETURN_IF_ERROR(ParseChatTemplateKwargs(data.chat_template_kwargs).status());
  TAOPD_RETURN_IF_ERROR(ParseResponsesBySource(eval.n_by_source).status());
  if (!data.train_weights.empty() && data.train_weights.size() != data.train.size()) {
    return InvalidArgument("data.train_weights has ", data.train_weights.size(),
                           " numbers for the ", data.train.size(), " files of data.train");
  }
  return absl::OkStatus();
}

void LogDataset(const std::string& name, const PromptDataset& dataset) {
  for (const FileCounts& file : dataset.files) {
    LogInfo(name, {{"file", file.path},
                   {"rows", file.num_rows},
                   {"prompts", file.num_records},
                   {"overlong_dropped", file.num_overlong},
                   {"truncated", file.num_truncated},
                   {"unknown_bytes", file.num_unknown_bytes},
                   {"teacher_prompt_missing", file.num_teacher_prompt_missing},
                   {"duplicates", file.num_duplicates}});
  }
}

}  // namespace taopd
