// Reads one row of a data file as a prompt. LoadPrompts (prompt_dataset.h) uses it for each row.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd {

// Immutable; any thread may use it.
class PromptReader {
 public:
  // `tokenizer` may be null. Both must outlive the reader.
  PromptReader(const Tokenizer* tokenizer, const DatasetOptions& options);

  // Returns the dotted paths that Read uses.
  std::vector<std::string> Columns() const;

  struct Row {
    PromptRecord record;
    bool is_overlong = false;           // a prompt was longer than its limit
    bool is_dropped = false;            // because of a prompt; `record` is then incomplete
    bool keeps_own_system = false;      // the chat's own system message, not the template's
    bool lacks_teacher_prompt = false;  // a part of the teacher's prompt is missing
  };
  // `record` holds the id and the default source of the row. Returns INVALID_ARGUMENT with the
  // invalid key.
  absl::StatusOr<Row> Read(const nlohmann::ordered_json& row, PromptRecord record) const;

 private:
  // The student's prompt or the teacher's, which differ in these.
  struct PromptSpec {
    std::string key;
    RowTemplate row_template;  // around the prompt
    int64_t max_length = 0;
    bool is_teachers = false;
  };

  static PromptSpec TeacherSpec(const DatasetOptions& options);
  absl::Status ReadPrompt(const PromptSpec& spec, const nlohmann::ordered_json& row,
                          Row* result) const;
  absl::Status ReadMessages(const PromptSpec& spec, const nlohmann::ordered_json& row,
                            const nlohmann::ordered_json& prompt, PromptRecord* record) const;
  // Returns the text of a question with the templates around it. Returns NOT_FOUND if the row lacks
  // a part of it.
  absl::StatusOr<std::string> FillTemplates(const PromptSpec& spec,
                                            const nlohmann::ordered_json& row,
                                            const std::string& question) const;
  absl::Status ReadTeacherPrompt(const nlohmann::ordered_json& row, Row* result) const;
  absl::Status StoreTeacherPrompt(PromptRecord read, TeacherPrompt* prompt) const;
  bool AddSystemMessage(nlohmann::ordered_json* messages) const;
  absl::Status JoinMessages(const PromptSpec& spec, PromptRecord* record) const;
  absl::Status LimitLength(const PromptSpec& spec, Row* result) const;
  absl::Status TokenizePrompt(const PromptSpec& spec, bool add_special_tokens,
                              PromptRecord* record) const;
  absl::Status ReadAnswer(const nlohmann::ordered_json& row, PromptRecord* record) const;
  absl::Status ReadSource(const nlohmann::ordered_json& row, PromptRecord* record) const;
  absl::Status ReadResponse(const nlohmann::ordered_json& row, PromptRecord* record) const;
  absl::Status ReadResponseMessages(const nlohmann::ordered_json& messages,
                                    PromptRecord* record) const;
  absl::Status Tokenize(const std::string& text, const std::string& key, bool add_special_tokens,
                        std::vector<int32_t>* ids) const;

  const Tokenizer* const tokenizer_;
  const DatasetOptions& options_;
  const PromptSpec student_, teacher_;
};

}  // namespace taopd
