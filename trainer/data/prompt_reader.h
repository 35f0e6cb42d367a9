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
  PromptReader(const Tokenizer* tokenizer, const DatasetOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  // Returns the dotted paths that Read uses.
  std::vector<std::string> Columns() const;

  struct Row {
    PromptRecord record;
    bool overlong = false;    // the prompt was longer than max_prompt_length
    bool dropped = false;     // the row was dropped for that reason; `record` is incomplete
    bool own_system = false;  // the chat kept its own system message instead of the template's
  };
  // `record` holds the id and the default source of the row. Returns INVALID_ARGUMENT with the
  // invalid key.
  absl::StatusOr<Row> Read(const nlohmann::ordered_json& row, PromptRecord record) const;

 private:
  absl::Status ReadPrompt(const nlohmann::ordered_json& row, Row* result) const;
  absl::Status ReadMessages(const nlohmann::ordered_json& prompt, PromptRecord* record) const;
  bool AddSystemMessage(nlohmann::ordered_json* messages) const;
  absl::Status JoinMessages(PromptRecord* record) const;
  absl::Status LimitLength(Row* result) const;
  absl::Status ReadAnswer(const nlohmann::ordered_json& row, PromptRecord* record) const;
  absl::Status ReadSource(const nlohmann::ordered_json& row, PromptRecord* record) const;
  absl::Status ReadResponse(const nlohmann::ordered_json& row, PromptRecord* record) const;
  absl::Status Tokenize(const std::string& text, const std::string& key, bool add_special_tokens,
                        std::vector<int32_t>* ids) const;

  const Tokenizer* const tokenizer_;
  const DatasetOptions& options_;
};

}  // namespace taopd
