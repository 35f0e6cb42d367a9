#include "trainer/data/prompt_reader.h"

#include <absl/strings/str_replace.h>

#include <algorithm>
#include <utility>

#include "trainer/data/conversation.h"
#include "trainer/data/row_reader.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// The path of the answer in verl's files.
constexpr char kVerlAnswer[] = "reward_model.ground_truth";

absl::Status CheckMessages(const Json& messages, const std::string& key) {
  if (messages.empty()) return InvalidArgument("\"", key, "\" is an empty list of messages");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const std::string where = Concat("\"", key, "\"[", i, "]");
    if (!message.is_object())
      return InvalidArgument(where, " is not a message, an object with role and content");
    const auto role = message.find("role"), content = message.find("content");
    if (role == message.end() || !role->is_string())
      return InvalidArgument(where, " has no role, or one that is not text");
    if (content == message.end()) return InvalidArgument(where, " has no content");
    // The template handles lists of parts, and a null next to tool calls.
    if (!content->is_string() && !content->is_array() &&
        !(content->is_null() && message.contains("tool_calls"))) {
      return InvalidArgument(where, ": the content is not text");
    }
  }
  return absl::OkStatus();
}

}  // namespace

PromptReader::PromptSpec PromptReader::TeacherSpec(const DatasetOptions& options) {
  const TeacherPromptOptions& teacher = options.teacher;
  const std::vector<std::string> names = teacher.row_template.Names();
  const int64_t num_siblings = std::ranges::count(names, kSibling);
  return {teacher.key.empty() ? options.prompt_key : teacher.key, teacher.row_template,
          teacher.max_length - teacher.sibling_length * num_siblings, /*is_teachers=*/true};
}

PromptReader::PromptReader(const Tokenizer* tokenizer, const DatasetOptions& options)
    : tokenizer_(tokenizer),
      options_(options),
      student_{options.prompt_key, RowTemplate(), options.max_prompt_length},
      teacher_(TeacherSpec(options)) {}

std::vector<std::string> PromptReader::Columns() const {
  std::vector<std::string> columns = {options_.prompt_key, options_.prompt_key + "_ids", "tools"};
  if (const std::string& key = options_.teacher.key; !key.empty()) {
    columns.insert(columns.end(), {key, key + "_ids"});
  }
  for (const std::string& name : options_.teacher.row_template.Names()) columns.push_back(name);
  if (!options_.answer_key.empty()) {
    columns.insert(columns.end(), {options_.answer_key, kVerlAnswer});
  }
  if (!options_.source_key.empty()) columns.push_back(options_.source_key);
  if (!options_.response_key.empty()) {
    columns.insert(columns.end(), {options_.response_key, options_.response_key + "_ids"});
    if (!options_.messages_key.empty()) columns.push_back(options_.messages_key);
  }
  return columns;
}

absl::StatusOr<PromptReader::Row> PromptReader::Read(const Json& row, PromptRecord record) const {
  if (!row.is_object()) return InvalidArgument("a row must be an object");
  Row result;
  result.record = std::move(record);
  TAOPD_RETURN_IF_ERROR(ReadPrompt(student_, row, &result));
  TAOPD_RETURN_IF_ERROR(LimitLength(student_, &result));
  if (result.is_dropped) return result;
  TAOPD_RETURN_IF_ERROR(ReadAnswer(row, &result.record));
  TAOPD_RETURN_IF_ERROR(ReadSource(row, &result.record));
  if (!options_.response_key.empty()) TAOPD_RETURN_IF_ERROR(ReadResponse(row, &result.record));
  if (options_.teacher.is_used()) TAOPD_RETURN_IF_ERROR(ReadTeacherPrompt(row, &result));
  return result;
}

// ---- The prompt ---------------------------------------------------------------------------------

absl::Status PromptReader::ReadPrompt(const PromptSpec& spec, const Json& row, Row* result) const {
  PromptRecord* record = &result->record;
  const std::string& key = spec.key;
  const PromptTemplate& prompt_template = options_.prompt_template;
  if (const Json* ids = FindValue(row, key + "_ids")) {
    if (!prompt_template.name.empty() || !prompt_template.system.empty() ||
        !spec.row_template.empty()) {
      return InvalidArgument(
          "\"", key,
          "_ids\" are token ids: no prompt template or system prompt can be put around them");
    }
    TAOPD_ASSIGN_OR_RETURN(record->prompt_ids,
                           ReadTokenIds(*ids, key + "_ids", options_.vocab_size));
    return record->prompt_ids.empty() ? InvalidArgument("the prompt is empty") : absl::OkStatus();
  }
  const Json* prompt = FindPath(row, key);
  if (prompt == nullptr) {
    return InvalidArgument("has neither \"", key, "\" nor \"", key, "_ids\"");
  }
  if (prompt->is_string()) {
    TAOPD_ASSIGN_OR_RETURN(const std::string text,
                           FillTemplates(spec, row, prompt->get<std::string>()));
    if (text.empty()) return InvalidArgument("the prompt is empty");
    if (!options_.text_as_chat && prompt_template.system.empty()) {
      record->prompt = text;
      return TokenizePrompt(spec, options_.add_special_tokens, record);
    }
    record->messages = Json::array({Json{{"role", "user"}, {"content", text}}});
  } else {
    TAOPD_RETURN_IF_ERROR(ReadMessages(spec, row, *prompt, record));
  }
  if (!prompt_template.system.empty())
    result->keeps_own_system = !AddSystemMessage(&record->messages);
  if (options_.messages_as_text) return JoinMessages(spec, record);
  if (!options_.tokenize) return absl::OkStatus();
  if (options_.render == nullptr) {
    return InvalidArgument(
        "\"", key, "\" is a list of messages but the model has no chat template; give text, \"",
        key, "_ids\", or apply_chat_template never");
  }
  TAOPD_ASSIGN_OR_RETURN(record->prompt, options_.render(record->messages));
  return TokenizePrompt(spec, /*add_special_tokens=*/false, record);
}

// Reads a list of messages and puts the template's text around the last one, the question.
absl::Status PromptReader::ReadMessages(const PromptSpec& spec, const Json& row, const Json& prompt,
                                        PromptRecord* record) const {
  const std::string& key = spec.key;
  if (!prompt.is_array()) {
    return InvalidArgument("\"", key, "\" is neither text nor a list of messages");
  }
  TAOPD_RETURN_IF_ERROR(CheckMessages(prompt, key));
  TAOPD_RETURN_IF_ERROR(CheckNoTools(row));
  record->messages = prompt;
  if (options_.prompt_template.name.empty() && spec.row_template.empty()) return absl::OkStatus();
  Json& last = record->messages.back();
  if (last["role"] != "user" || !last["content"].is_string()) {
    const std::string& name = options_.prompt_template.name;
    const std::string what = name.empty() ? std::string("data.teacher_prompt_template")
                                          : Concat("the prompt template ", name);
    return InvalidArgument("\"", key, "\": the last message is not a user's text, so ", what,
                           " has no question to fill in");
  }
  TAOPD_ASSIGN_OR_RETURN(const std::string text, FillTemplates(spec, row, last["content"]));
  last["content"] = text;
  return absl::OkStatus();
}

absl::StatusOr<std::string> PromptReader::FillTemplates(const PromptSpec& spec, const Json& row,
                                                        const std::string& question) const {
  std::string text = FillTemplate(options_.prompt_template, question);
  if (spec.row_template.empty()) return text;
  return spec.row_template.Fill([&](const std::string& name) -> absl::StatusOr<std::string> {
    if (name == "prompt") return text;
    if (name == kSibling) return std::string(kSiblingMark);
    std::string value;
    if (name == "answer") {
      PromptRecord record;
      TAOPD_RETURN_IF_ERROR(ReadAnswer(row, &record));
      value = record.answer;
    } else if (const Json* found = FindValue(row, name)) {
      TAOPD_ASSIGN_OR_RETURN(value, ReadTextOrNumber(*found, name));
    }
    if (value.empty()) return NotFound("has no \"", name, "\"");
    return value;
  });
}

// Returns false if the messages have a system message of their own, which is kept.
bool PromptReader::AddSystemMessage(Json* messages) const {
  if (messages->front()["role"] == "system") return false;
  messages->insert(messages->begin(),
                   Json{{"role", "system"}, {"content", options_.prompt_template.system}});
  return true;
}

absl::Status PromptReader::JoinMessages(const PromptSpec& spec, PromptRecord* record) const {
  for (const Json& message : record->messages) {
    if (!message["content"].is_string()) {
      return InvalidArgument("\"", spec.key, "\": a message's content is not text");
    }
    record->prompt +=
        (record->prompt.empty() ? "" : "\n\n") + message["content"].get<std::string>();
  }
  record->messages = nullptr;
  return TokenizePrompt(spec, options_.add_special_tokens, record);
}

// Refuses an empty prompt, and drops, cuts or refuses an over-long one.
absl::Status PromptReader::LimitLength(const PromptSpec& spec, Row* result) const {
  PromptRecord& record = result->record;
  const auto prompt_length = static_cast<int64_t>(record.prompt_ids.size());
  result->is_overlong = prompt_length > spec.max_length;
  if (result->is_overlong && options_.filter_overlong_prompts) {
    result->is_dropped = true;
    return absl::OkStatus();
  }
  if (options_.tokenize && tokenizer_ != nullptr) {
    record.num_unknown_bytes = tokenizer_->CountUnknownBytes(record.prompt);
  }
  if (options_.tokenize && prompt_length == 0) {
    return InvalidArgument("the prompt is empty",
                           record.num_unknown_bytes > 0
                               ? ": the tokenizer has a token for none of its characters"
                               : "");
  }
  if (!result->is_overlong) return absl::OkStatus();
  if (spec.is_teachers) {
    return InvalidArgument("the teacher's prompt has ", prompt_length,
                           " tokens, more than max_teacher_prompt_length leaves room for, ",
                           spec.max_length, " (filter_overlong_prompts drops such rows)");
  }
  if (options_.truncation == Truncation::kError) {
    return InvalidArgument("the prompt has ", prompt_length,
                           " tokens, more than max_prompt_length ", options_.max_prompt_length,
                           " (filter_overlong_prompts drops such rows, truncation left, right "
                           "or middle cuts them)");
  }
  record.num_truncated_tokens = prompt_length - options_.max_prompt_length;
  record.prompt_ids =
      TruncateIds(std::move(record.prompt_ids), options_.max_prompt_length, options_.truncation);
  if (!record.prompt.empty()) {
    record.prompt = tokenizer_->Decode(record.prompt_ids, /*skip_special_tokens=*/false);
  }
  return absl::OkStatus();
}

// Leaves out the mark of a sibling, for which TeacherSpec has reserved tokens.
absl::Status PromptReader::TokenizePrompt(const PromptSpec& spec, bool add_special_tokens,
                                          PromptRecord* record) const {
  const std::string text = spec.row_template.Has(kSibling)
                               ? absl::StrReplaceAll(record->prompt, {{kSiblingMark, ""}})
                               : record->prompt;
  return Tokenize(text, spec.key, add_special_tokens, &record->prompt_ids);
}

absl::Status PromptReader::Tokenize(const std::string& text, const std::string& key,
                                    bool add_special_tokens, std::vector<int32_t>* ids) const {
  if (!options_.tokenize) return absl::OkStatus();
  if (tokenizer_ == nullptr) {
    return InvalidArgument("\"", key, "\" is text but the model has no tokenizer.json; give \"",
                           key, "_ids\"");
  }
  *ids = tokenizer_->Encode(text, add_special_tokens);
  for (int32_t id : *ids) {
    if (id >= options_.vocab_size) {
      return InvalidArgument("\"", key, "\" tokenizes to id ", id,
                             ", beyond the model's vocabulary size ", options_.vocab_size);
    }
  }
  return absl::OkStatus();
}

// ---- The teacher's prompt -----------------------------------------------------------------------

absl::Status PromptReader::ReadTeacherPrompt(const Json& row, Row* result) const {
  const std::string& key = teacher_.key;
  Row read;
  const bool is_missing = FindValue(row, key) == nullptr && FindValue(row, key + "_ids") == nullptr;
  const absl::Status status =
      is_missing ? NotFound("has no \"", key, "\"") : ReadPrompt(teacher_, row, &read);
  if (absl::IsNotFound(status)) {
    const MissingTeacherPrompt missing = options_.teacher.missing;
    if (missing == MissingTeacherPrompt::kError) {
      return InvalidArgument(status.message(),
                             " for the teacher's prompt (teacher_prompt_missing plain uses the "
                             "student's prompt, skip drops such rows)");
    }
    result->lacks_teacher_prompt = true;
    result->is_dropped = missing == MissingTeacherPrompt::kSkip;
    return absl::OkStatus();
  }
  if (!status.ok()) return Annotate(status, "the teacher's prompt");
  TAOPD_RETURN_IF_ERROR(LimitLength(teacher_, &read));
  result->is_overlong |= read.is_overlong;
  result->is_dropped |= read.is_dropped;
  return StoreTeacherPrompt(std::move(read.record), &result->record.teacher_prompt);
}

absl::Status PromptReader::StoreTeacherPrompt(PromptRecord read, TeacherPrompt* prompt) const {
  int64_t num_marks = 0;
  for (size_t at = 0; (at = read.prompt.find(kSiblingMark, at)) != std::string::npos; ++at)
    ++num_marks;
  const std::vector<std::string> names = options_.teacher.row_template.Names();
  prompt->has_sibling = options_.teacher.row_template.Has(kSibling);
  if (prompt->has_sibling && num_marks != std::ranges::count(names, kSibling)) {
    return InvalidArgument("the teacher's prompt: the row's own text contains ", kSiblingMark,
                           ", which stands for a response");
  }
  // The special tokens of a chat are in its text.
  prompt->add_special_tokens = read.messages.is_null() && options_.add_special_tokens;
  prompt->text = std::move(read.prompt);
  if (!prompt->has_sibling) prompt->ids = std::move(read.prompt_ids);
  return absl::OkStatus();
}

// ---- The other columns --------------------------------------------------------------------------

absl::Status PromptReader::ReadAnswer(const Json& row, PromptRecord* record) const {
  if (options_.answer_key.empty()) return absl::OkStatus();
  std::string key = options_.answer_key;
  const Json* answer = FindPath(row, key);
  if (answer == nullptr) answer = FindPath(row, key = kVerlAnswer);
  if (answer == nullptr || answer->is_null()) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(record->answer, ReadTextOrNumber(*answer, key));
  return absl::OkStatus();
}

absl::Status PromptReader::ReadSource(const Json& row, PromptRecord* record) const {
  if (options_.source_key.empty()) return absl::OkStatus();
  const Json* source = FindValue(row, options_.source_key);
  if (source == nullptr) return absl::OkStatus();
  if (!source->is_string()) return InvalidArgument("\"", options_.source_key, "\" is not text");
  record->source = source->get<std::string>();
  return absl::OkStatus();
}

absl::Status PromptReader::ReadResponse(const Json& row, PromptRecord* record) const {
  const std::string& key = options_.response_key;
  bool has_end = false;
  if (const Json* ids = FindValue(row, key + "_ids")) {
    TAOPD_ASSIGN_OR_RETURN(record->response_ids,
                           ReadTokenIds(*ids, key + "_ids", options_.vocab_size));
  } else if (const Json* text = FindPath(row, key); text != nullptr) {
    has_end = text->is_array();
    if (has_end) {
      TAOPD_RETURN_IF_ERROR(ReadResponseMessages(*text, record));
    } else if (!text->is_string()) {
      return InvalidArgument("\"", key, "\" is neither text nor a list of messages");
    } else {
      TAOPD_RETURN_IF_ERROR(Tokenize(text->get<std::string>(), key, /*add_special_tokens=*/false,
                                     &record->response_ids));
    }
  } else {
    return InvalidArgument(
        "has neither \"", key, "\" nor \"", key, "_ids\"",
        options_.messages_key.empty() ? "" : Concat(" nor \"", options_.messages_key, "\""));
  }
  const auto eos = static_cast<int32_t>(options_.append_eos_id);
  if (eos >= 0 && !has_end &&
      (record->response_ids.empty() || record->response_ids.back() != eos)) {
    record->response_ids.push_back(eos);
  }
  if (record->response_ids.empty()) return InvalidArgument("the response is empty");
  const auto length = static_cast<int64_t>(record->prompt_ids.size() + record->response_ids.size());
  if (length > options_.max_length) {
    return InvalidArgument("prompt and response have ", length, " tokens, more than max_length ",
                           options_.max_length);
  }
  return absl::OkStatus();
}

// The response is what the template adds to the prompt. It is tokenized by itself, because a model
// generates it after the prompt's tokens.
absl::Status PromptReader::ReadResponseMessages(const Json& messages, PromptRecord* record) const {
  const std::string& key = options_.response_key;
  TAOPD_RETURN_IF_ERROR(CheckMessages(messages, key));
  if (record->messages.is_null()) {
    return InvalidArgument("\"", key, "\" is a list of messages, but \"", options_.prompt_key,
                           "\" is not");
  }
  if (options_.render_finished == nullptr) {
    return InvalidArgument("\"", key,
                           "\" is a list of messages, but the model has no chat template");
  }
  Json conversation = record->messages;
  for (Json message : messages) {
    TAOPD_ASSIGN_OR_RETURN(const bool has_zero_weight, RemoveZeroWeight(&message));
    if (has_zero_weight)
      return InvalidArgument("\"", key, "\" has a message with the weight 0, which is not learned");
    conversation.push_back(std::move(message));
  }
  TAOPD_ASSIGN_OR_RETURN(const std::string text, options_.render_finished(conversation));
  if (!text.starts_with(record->prompt)) {
    return InvalidArgument(
        "the chat template renders the prompt differently when \"", key,
        "\" follows it: give the response as text, or other chat_template_kwargs");
  }
  return Tokenize(text.substr(record->prompt.size()), key, /*add_special_tokens=*/false,
                  &record->response_ids);
}

}  // namespace taopd
