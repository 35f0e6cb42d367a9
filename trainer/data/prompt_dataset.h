// Prompts from JSONL files, tokenized once, in an order that is a pure function of (seed, epoch): the
// position in the data is two numbers, which a checkpoint keeps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/text/tokenizer.h"

namespace taopd {

struct PromptRecord {
  std::string id;                    // "file:line"
  std::string prompt;                // text; empty when the file gives ids
  std::vector<int32_t> prompt_ids;
  std::string answer;                // empty: none given
  std::vector<int32_t> response_ids; // a given response (supervised data, held-out text); else empty
};

struct DatasetOptions {
  std::string prompt_key = "prompt";
  std::string answer_key = "answer";      // empty: not read
  std::string response_key;               // empty: not read; else required in every row
  bool add_special_tokens = true;
  int64_t max_prompt_length = INT64_MAX;  // tokens
  bool filter_overlong_prompts = false;   // false: an over-long prompt is an error
  int64_t max_length = INT64_MAX;         // prompt plus response; longer is an error
  int64_t append_eos_id = -1;             // >= 0: each response ends with it
  int64_t vocab_size = 0;                 // ids must be below
};

struct PromptDataset {
  std::vector<PromptRecord> records;
  int64_t num_filtered = 0;  // over-long prompts dropped
};

// A row is an object. The prompt is text under prompt_key (needs a tokenizer) or a list of ids under
// prompt_key + "_ids"; the same for the response. Errors name file, line and key. An empty result is an
// error. `tokenizer` may be null.
absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths, const Tokenizer* tokenizer,
                                          const DatasetOptions& options);

// Endless batches: epoch after epoch; a batch may span two epochs, so every record is used once an epoch.
class EpochOrder {
 public:
  EpochOrder(int64_t num_records, uint64_t seed, bool shuffle);
  std::vector<int64_t> Next(int64_t count);

  int64_t epoch() const { return epoch_; }
  int64_t index() const { return index_; }
  // INVALID_ARGUMENT when the position does not exist in this data.
  absl::Status Restore(int64_t epoch, int64_t index);

 private:
  void StartEpoch();
  const int64_t num_records_;
  const uint64_t seed_;
  const bool shuffle_;
  int64_t epoch_ = 0;
  int64_t index_ = 0;
  std::vector<int64_t> order_;
};

}  // namespace taopd
