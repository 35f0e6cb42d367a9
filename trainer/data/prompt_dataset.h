// Prompts from JSON Lines and Parquet files, rendered and tokenized once.
//
// A row is an object. Its prompt stands under prompt_key, a dotted path, and is one of:
//   - text, which is used as it is, or as a user message if a chat is asked for;
//   - a list of messages, [{"role": ..., "content": ...}], which is rendered with the model's chat
//     template.
// Token ids stand under the same path followed by "_ids" and are used as they are.
//
// verl's files are read unchanged: prompt (messages), data_source and reward_model.ground_truth.
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
#include "trainer/data/truncation.h"

namespace taopd {

struct PromptRecord {
  std::string id;      // "file:row"
  std::string prompt;  // the text that the model sees; empty if the file gives token ids
  // The number of tokens that were cut off the prompt.
  int64_t num_truncated_tokens = 0;
  // The number of bytes of the whole prompt that the tokenizer has no token for and leaves out.
  int64_t num_unknown_bytes = 0;
  // Empty if DatasetOptions::tokenize is false, unless the file gives token ids.
  std::vector<int32_t> prompt_ids;
  nlohmann::ordered_json messages;  // null unless the prompt is a chat
  std::string answer;               // empty if the row has none
  // The data set that the row belongs to. A row that names none has the file's name without its
  // extension.
  std::string source;
  // A given response (supervised data, held-out text); else empty.
  std::vector<int32_t> response_ids;
};

// Turns messages into the text that the model sees, up to where its response starts.
using RenderMessages =
    std::function<absl::StatusOr<std::string>(const nlohmann::ordered_json& messages)>;

struct DatasetOptions {
  std::string prompt_key = "prompt";
  // Empty: answers are not read. For a row without it, verl's reward_model.ground_truth is read.
  std::string answer_key = "answer";
  std::string source_key = "data_source";  // empty: not read
  std::string response_key;                // empty: not read; else every row must have it
  // Its system message is added to chats that have none.
  PromptTemplate prompt_template;
  // Makes a user message of a text prompt. A system message of the template does so as well.
  bool text_as_chat = false;
  // Makes text of a chat: the contents of its messages, with an empty line between them.
  bool messages_as_text = false;
  RenderMessages render;  // null: messages are refused
  // False if a server tokenizes the prompts. The tokenizer and `render` are then not used.
  bool tokenize = true;
  // Applies to text prompts only; a chat template writes its own special tokens.
  bool add_special_tokens = true;
  int64_t max_prompt_length = INT64_MAX;  // tokens
  // Drops over-long prompts, whatever `truncation` says.
  bool filter_overlong_prompts = false;
  Truncation truncation = Truncation::kError;
  bool drop_duplicates = false;  // false: duplicates are only counted
  // The limit of prompt and response together, in tokens. A longer row is an error.
  int64_t max_length = INT64_MAX;
  int64_t append_eos_id = -1;  // if >= 0, every response ends with it
  int64_t vocab_size = 0;      // token ids must be below it
};

// What became of the rows of a file.
struct FileCounts {
  std::string path;
  std::string format;  // "jsonl" or "parquet"
  int64_t num_rows = 0;
  int64_t num_records = 0;        // rows that are used
  int64_t num_overlong = 0;       // rows that were dropped because their prompt is too long
  int64_t num_truncated = 0;      // records whose prompt was cut to max_prompt_length
  int64_t num_unknown_bytes = 0;  // sum over the records
  int64_t num_duplicates = 0;     // rows seen before, in this file or an earlier one
  // Chats that keep their own system message instead of the template's.
  int64_t num_own_system = 0;
};

struct PromptDataset {
  std::vector<PromptRecord> records;  // file by file
  std::vector<FileCounts> files;

  // Sums over the files.
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

// Reads the files in the given order. `tokenizer` may be null if no prompt needs one. Returns
// INVALID_ARGUMENT, DATA_LOSS or NOT_FOUND with the file, the row and the key that is wrong, and
// INVALID_ARGUMENT if no record is left.
absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths,
                                          const Tokenizer* tokenizer,
                                          const DatasetOptions& options);

// Returns the files as shares of an epoch. `weights` has one number for each file, or none, which
// means 1 for all. Returns INVALID_ARGUMENT for any other number of weights, for a weight outside
// (0, 1000], and for one so small that no record of the file is used.
absl::StatusOr<std::vector<DataShare>> WeighFiles(const PromptDataset& dataset,
                                                  const std::vector<double>& weights);

}  // namespace taopd
