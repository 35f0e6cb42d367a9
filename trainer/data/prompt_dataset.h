// Prompts from JSON Lines and Parquet files, rendered and tokenized once.
//
// A row is an object. Its prompt stands under prompt_key (a dotted path) and is
//   text                       taken as it is, or as a user message where a chat is asked for,
//   a list of messages         [{"role": ..., "content": ...}], rendered with the model's chat
//   template, or, under prompt_key_ids,  token ids.
// verl's files are read unchanged: prompt (messages), data_source, reward_model.ground_truth.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/data/epoch_order.h"
#include "trainer/data/prompt_template.h"

namespace taopd {

struct PromptRecord {
  std::string id;                    // "file:row"
  std::string prompt;                // text as the model sees it; empty when the file gives ids
  int64_t num_truncated_tokens = 0;  // of the prompt, cut off
  int64_t num_unknown_bytes =
      0;  // of the whole prompt: those that the tokenizer has no token for and leaves out
  std::vector<int32_t>
      prompt_ids;  // empty with DatasetOptions::tokenize off, unless the file gives ids
  nlohmann::ordered_json messages;  // null unless the prompt is a chat
  std::string answer;               // empty: none given
  std::string source;  // data set of the row; the file's name without extension where it has none
  std::vector<int32_t>
      response_ids;  // a given response (supervised data, held-out text); else empty
};

// What becomes of a prompt of more than max_prompt_length tokens, as verl's data.truncation: an
// error, or its first tokens (kLeft), its last (kRight) or those in the middle (kMiddle) are cut
// off.
enum class Truncation { kError, kLeft, kRight, kMiddle };
// INVALID_ARGUMENT for a name other than error, left, right and middle.
absl::StatusOr<Truncation> ParseTruncation(const std::string& name);
// At most max_length of the ids; where they are more, those that stay. REQUIRES: not kError.
std::vector<int32_t> TruncateIds(std::vector<int32_t> ids, int64_t max_length,
                                 Truncation truncation);

// Messages to the text that the model sees, up to where its response starts.
using RenderMessages =
    std::function<absl::StatusOr<std::string>(const nlohmann::ordered_json& messages)>;

struct DatasetOptions {
  std::string prompt_key = "prompt";
  // Empty: not read. Where a row lacks it, verl's reward_model.ground_truth is read.
  std::string answer_key = "answer";
  std::string source_key = "data_source";  // empty: not read
  std::string response_key;                // empty: not read; else required in every row
  PromptTemplate prompt_template;          // its system message goes to chats that bring none
  bool text_as_chat =
      false;  // a text prompt becomes a user message; so it does under a system message
  bool messages_as_text = false;  // a chat becomes its contents, joined by empty lines
  RenderMessages render;          // null: messages are refused
  bool tokenize = true;  // false: for a server that does it; tokenizer and render are not used
  bool add_special_tokens = true;         // for text prompts; a chat template writes its own
  int64_t max_prompt_length = INT64_MAX;  // tokens
  bool filter_overlong_prompts = false;   // drop an over-long prompt, whatever `truncation` says
  Truncation truncation = Truncation::kError;
  bool drop_duplicates = false;    // false: they are counted only
  int64_t max_length = INT64_MAX;  // prompt plus response; longer is an error
  int64_t append_eos_id = -1;      // >= 0: each response ends with it
  int64_t vocab_size = 0;          // ids must be below
};

// What became of a file's rows.
struct FileCounts {
  std::string path;
  std::string format;  // "jsonl" or "parquet"
  int64_t num_rows = 0;
  int64_t num_records = 0;        // that are used
  int64_t num_overlong = 0;       // dropped
  int64_t num_truncated = 0;      // records whose prompt was cut to max_prompt_length
  int64_t num_unknown_bytes = 0;  // of the records
  int64_t num_duplicates = 0;     // prompts seen before, in this file or one before it
  int64_t num_own_system =
      0;  // chats that kept their own system message in place of the template's
};

struct PromptDataset {
  std::vector<PromptRecord> records;  // file by file
  std::vector<FileCounts> files;

  int64_t num_overlong() const { return Sum(&FileCounts::num_overlong); }
  int64_t num_truncated() const { return Sum(&FileCounts::num_truncated); }
  int64_t num_unknown_bytes() const { return Sum(&FileCounts::num_unknown_bytes); }
  int64_t num_duplicates() const { return Sum(&FileCounts::num_duplicates); }

 private:
  int64_t Sum(int64_t FileCounts::*count) const {
    int64_t sum = 0;
    for (const FileCounts& file : files) sum += file.*count;
    return sum;
  }
};

// Errors name file, row and key. An empty result is an error. `tokenizer` may be null.
absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths,
                                          const Tokenizer* tokenizer,
                                          const DatasetOptions& options);

// The files as shares of an epoch. `weights`: one for each file, or none at all (all 1).
// INVALID_ARGUMENT for another number of them, for one that is not positive or over 1000, and for
// one so small that no record is used.
absl::StatusOr<std::vector<DataShare>> WeighFiles(const PromptDataset& dataset,
                                                  const std::vector<double>& weights);

}  // namespace taopd
