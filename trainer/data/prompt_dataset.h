// Prompts from JSON Lines and Parquet files, rendered and tokenized once.
//
// A row is an object. Its prompt is at prompt_key, a dotted path, and is one of:
//   - text, which is used unchanged, or as a user message if a chat is requested;
//   - a list of messages, [{"role": ..., "content": ...}], which is rendered with the model's chat
//     template.
// Token ids are at the same path followed by "_ids" and are used unchanged.
//
// A supervised row has a response as well: text, token ids, or a list of messages that continues
// the prompt's. It may be a whole conversation (conversation.h).
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
#include "trainer/data/conversation.h"
#include "trainer/data/epoch_order.h"
#include "trainer/data/prompt_template.h"
#include "trainer/data/teacher_prompt.h"
#include "trainer/data/truncation.h"

namespace taopd {

struct PromptRecord {
  std::string id;      // "file:row", or "file:row:turn" if a conversation gives several records
  std::string prompt;  // the text that the model sees; empty if the file gives token ids
  // The number of tokens that were cut off the prompt.
  int64_t num_truncated_tokens = 0;
  // The number of bytes of the whole prompt that the tokenizer leaves out, because it has no token
  // for them.
  int64_t num_unknown_bytes = 0;
  // Empty if DatasetOptions::tokenize is false, unless the file gives token ids.
  std::vector<int32_t> prompt_ids;
  nlohmann::ordered_json messages;  // null unless the prompt is a chat
  std::string answer;               // empty if the row has none
  // The data set to which the row belongs; by default the file's name without its extension.
  std::string source;
  // The given response (supervised data, held-out text), or empty.
  std::vector<int32_t> response_ids;
  TeacherPrompt teacher_prompt;  // plain unless DatasetOptions::teacher is used
};

// Turns messages into text: what the model sees up to the start of its response, or a conversation
// with its end.
using RenderMessages =
    std::function<absl::StatusOr<std::string>(const nlohmann::ordered_json& messages)>;

struct DatasetOptions {
  std::string prompt_key = "prompt";
  // If empty, answers are not read. If a row lacks this key, verl's reward_model.ground_truth is
  // read.
  std::string answer_key = "answer";
  std::string source_key = "data_source";  // if empty, sources are not read
  // If empty, responses are not read; otherwise every row must have this key.
  std::string response_key;
  // The key of conversations; if empty, there are none. Used with response_key.
  std::string messages_key;
  AssistantTurns assistant_turns = AssistantTurns::kLast;
  // The template's system message is added to chats that have none.
  PromptTemplate prompt_template;
  // The teacher's prompt gets the same template, chat template and tokenizer as the student's.
  TeacherPromptOptions teacher;
  // Makes a text prompt a user message. A system message in the template has the same effect.
  bool text_as_chat = false;
  // Turns a chat into text: the contents of its messages with an empty line between them.
  bool messages_as_text = false;
  RenderMessages render;           // renders prompts; if null, prompts of messages are refused
  RenderMessages render_finished;  // the same for prompts with their responses
  // False if a server tokenizes the prompts. The tokenizer and `render` are not used then.
  bool tokenize = true;
  // Applies to text prompts only; a chat template writes its own special tokens.
  bool add_special_tokens = true;
  int64_t max_prompt_length = INT64_MAX;  // tokens
  // Drops over-long prompts, whatever the value of `truncation`.
  bool filter_overlong_prompts = false;
  Truncation truncation = Truncation::kError;
  // The maximum length of prompt and response together, in tokens. A longer row is an error.
  int64_t max_length = INT64_MAX;
  // If >= 0, every response ends with it. A response of messages ends as the chat template ends it.
  int64_t append_eos_id = -1;
  int64_t vocab_size = 0;  // token ids must be below it
};

// Counts of how the rows of a file were used.
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
  // Rows that lack a part of the teacher's prompt. They are dropped, or use the student's.
  int64_t num_teacher_prompt_missing = 0;
};

struct PromptDataset {
  std::vector<PromptRecord> records;  // in the order of the files
  std::vector<FileCounts> files;

  // Sums over the files.
  int64_t num_overlong() const { return Sum(&FileCounts::num_overlong); }
  int64_t num_truncated() const { return Sum(&FileCounts::num_truncated); }
  int64_t num_unknown_bytes() const { return Sum(&FileCounts::num_unknown_bytes); }
  int64_t num_duplicates() const { return Sum(&FileCounts::num_duplicates); }
  int64_t num_teacher_prompt_missing() const {
    return Sum(&FileCounts::num_teacher_prompt_missing);
  }

 private:
  int64_t Sum(int64_t FileCounts::*count) const {
    int64_t sum = 0;
    for (const FileCounts& file : files) sum += file.*count;
    return sum;
  }
};

// Reads the files in the given order. `tokenizer` may be null if no prompt needs one. Returns
// INVALID_ARGUMENT, DATA_LOSS or NOT_FOUND with the file, the row and the invalid key, and
// INVALID_ARGUMENT if no record is left.
absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths,
                                          const Tokenizer* tokenizer,
                                          const DatasetOptions& options);

// Returns the files as shares of an epoch. `weights` has one number per file, or is empty, which
// means 1 for all. Returns INVALID_ARGUMENT for any other number of weights, for a weight outside
// (0, 1000], and for a weight so small that no record of its file is used.
absl::StatusOr<std::vector<DataShare>> WeighFiles(const PromptDataset& dataset,
                                                  const std::vector<double>& weights);

}  // namespace taopd
