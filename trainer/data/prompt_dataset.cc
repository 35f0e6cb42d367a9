#include "trainer/data/prompt_dataset.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/random.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::json;

absl::StatusOr<std::vector<int32_t>> ReadIds(const json& row, const std::string& key, int64_t vocab_size) {
  const json& list = row.at(key);
  if (!list.is_array()) return InvalidArgument("\"", key, "\" is not a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const json& item : list) {
    const bool in_range = item.is_number_unsigned() && item.get<uint64_t>() < static_cast<uint64_t>(vocab_size);
    if (!in_range) {
      return InvalidArgument("\"", key, "\"[", ids.size(), "] = ", item.dump(),
                             " is not a token id below the vocabulary size ", vocab_size);
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

// Text under `key`, or ids under key_ids. `text` stays empty for ids.
absl::StatusOr<std::vector<int32_t>> ReadTokens(const json& row, const std::string& key, const Tokenizer* tokenizer,
                                                bool add_special_tokens, int64_t vocab_size, std::string* text) {
  const std::string ids_key = key + "_ids";
  if (row.contains(ids_key)) return ReadIds(row, ids_key, vocab_size);
  if (!row.contains(key)) return InvalidArgument("has neither \"", key, "\" nor \"", ids_key, "\"");
  const json& value = row.at(key);
  if (value.is_array()) {
    return Unimplemented("\"", key, "\" is a list of messages; chat templates are not supported, give text or \"",
                         ids_key, "\"");
  }
  if (!value.is_string()) return InvalidArgument("\"", key, "\" is not text");
  if (tokenizer == nullptr) {
    return InvalidArgument("\"", key, "\" is text but the model has no tokenizer.json; give \"", ids_key, "\"");
  }
  *text = value.get<std::string>();
  std::vector<int32_t> ids = tokenizer->Encode(*text, add_special_tokens);
  for (int32_t id : ids) {
    if (id >= vocab_size) {
      return InvalidArgument("\"", key, "\" tokenizes to id ", id, ", beyond the model's vocabulary size ", vocab_size);
    }
  }
  return ids;
}

absl::Status ReadRow(const json& row, const Tokenizer* tokenizer, const DatasetOptions& options,
                     PromptDataset* dataset, PromptRecord record) {
  if (!row.is_object()) return InvalidArgument("a row must be an object");
  TAOPD_ASSIGN_OR_RETURN(record.prompt_ids,
                         ReadTokens(row, options.prompt_key, tokenizer, options.add_special_tokens,
                                    options.vocab_size, &record.prompt));
  if (record.prompt_ids.empty()) return InvalidArgument("the prompt is empty");
  const auto prompt_length = static_cast<int64_t>(record.prompt_ids.size());
  if (prompt_length > options.max_prompt_length) {
    if (options.filter_overlong_prompts) {
      ++dataset->num_filtered;
      return absl::OkStatus();
    }
    return InvalidArgument("the prompt has ", prompt_length, " tokens, more than max_prompt_length ",
                           options.max_prompt_length, " (filter_overlong_prompts drops such rows)");
  }
  if (!options.answer_key.empty() && row.contains(options.answer_key)) {
    const json& answer = row.at(options.answer_key);
    if (!answer.is_string() && !answer.is_number()) {
      return InvalidArgument("\"", options.answer_key, "\" is neither text nor a number");
    }
    record.answer = answer.is_string() ? answer.get<std::string>() : answer.dump();
  }
  if (!options.response_key.empty()) {
    std::string text;
    TAOPD_ASSIGN_OR_RETURN(record.response_ids, ReadTokens(row, options.response_key, tokenizer,
                                                           /*add_special_tokens=*/false, options.vocab_size, &text));
    const auto eos = static_cast<int32_t>(options.append_eos_id);
    if (eos >= 0 && (record.response_ids.empty() || record.response_ids.back() != eos)) {
      record.response_ids.push_back(eos);
    }
    if (record.response_ids.empty()) return InvalidArgument("the response is empty");
    const int64_t length = prompt_length + static_cast<int64_t>(record.response_ids.size());
    if (length > options.max_length) {
      return InvalidArgument("prompt and response have ", length, " tokens, more than max_length ", options.max_length);
    }
  }
  dataset->records.push_back(std::move(record));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths, const Tokenizer* tokenizer,
                                          const DatasetOptions& options) {
  PromptDataset dataset;
  std::string list;
  for (const std::string& path : paths) {
    list += (list.empty() ? "" : ", ") + path;
    const std::string name = std::filesystem::path(path).filename().string();
    TAOPD_RETURN_IF_ERROR(ReadJsonl(path, [&](const json& row, int64_t line) {
      PromptRecord record;
      record.id = Concat(name, ":", line);
      return Annotate(ReadRow(row, tokenizer, options, &dataset, std::move(record)), Concat(path, ":", line));
    }));
  }
  if (dataset.records.empty()) {
    return InvalidArgument("no rows in ", list.empty() ? "an empty list of files" : list,
                           dataset.num_filtered > 0 ? Concat(" (", dataset.num_filtered, " over-long prompts dropped)") : "");
  }
  return dataset;
}

EpochOrder::EpochOrder(int64_t num_records, uint64_t seed, bool shuffle)
    : num_records_(num_records), seed_(seed), shuffle_(shuffle), order_(num_records) {
  StartEpoch();
}

void EpochOrder::StartEpoch() {
  std::iota(order_.begin(), order_.end(), int64_t{0});
  if (shuffle_) RandomStream(seed_, "epoch", {static_cast<uint64_t>(epoch_)}).Shuffle(&order_);
}

std::vector<int64_t> EpochOrder::Next(int64_t count) {
  std::vector<int64_t> batch;
  batch.reserve(count);
  while (static_cast<int64_t>(batch.size()) < count) {
    if (index_ == num_records_) {
      ++epoch_;
      index_ = 0;
      StartEpoch();
    }
    batch.push_back(order_[index_++]);
  }
  return batch;
}

absl::Status EpochOrder::Restore(int64_t epoch, int64_t index) {
  if (epoch < 0 || index < 0 || index > num_records_) {
    return InvalidArgument("data position epoch ", epoch, " index ", index, " is outside of the ", num_records_,
                           " rows of the data");
  }
  epoch_ = epoch;
  index_ = index;
  StartEpoch();
  return absl::OkStatus();
}

}  // namespace taopd
