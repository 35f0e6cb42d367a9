#include "trainer/data/prompt_dataset.h"

#include <cmath>
#include <filesystem>
#include <unordered_map>

#include "trainer/data/row_reader.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Where verl's files hold the answer.
constexpr char kVerlAnswer[] = "reward_model.ground_truth";

absl::StatusOr<std::vector<int32_t>> ReadIds(const Json& list, const std::string& key,
                                             int64_t vocab_size) {
  if (!list.is_array()) return InvalidArgument("\"", key, "\" is not a list of token ids");
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& item : list) {
    const bool in_range =
        item.is_number_unsigned()  ? item.get<uint64_t>() < static_cast<uint64_t>(vocab_size)
        : item.is_number_integer() ? item.get<int64_t>() >= 0 && item.get<int64_t>() < vocab_size
                                   : false;
    if (!in_range) {
      return InvalidArgument("\"", key, "\"[", ids.size(), "] = ", item.dump(),
                             " is not a token id below the vocabulary size ", vocab_size);
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

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
    // Null beside tool calls, a list for parts: the template's business.
    if (!content->is_string() && !content->is_array() &&
        !(content->is_null() && message.contains("tool_calls"))) {
      return InvalidArgument(where, ": the content is not text");
    }
  }
  return absl::OkStatus();
}

class Loader {
 public:
  Loader(const Tokenizer* tokenizer, const DatasetOptions& options)
      : tokenizer_(tokenizer), options_(options) {
    columns_ = {options.prompt_key, options.prompt_key + "_ids"};
    if (!options.answer_key.empty())
      columns_.insert(columns_.end(), {options.answer_key, kVerlAnswer});
    if (!options.source_key.empty()) columns_.push_back(options.source_key);
    if (!options.response_key.empty())
      columns_.insert(columns_.end(), {options.response_key, options.response_key + "_ids"});
  }

  absl::Status Load(const std::string& path) {
    FileCounts& counts = dataset_.files.emplace_back();
    counts.path = path;
    counts.format = DataFormatOf(path) == DataFormat::kParquet ? "parquet" : "jsonl";
    const std::filesystem::path file(path);
    return ReadRows(path, columns_, [&](const Json& row, int64_t number) {
      ++counts.num_rows;
      PromptRecord record;
      record.id = Concat(file.filename().string(), ":", number);
      record.source = file.stem().string();
      return ReadRow(row, std::move(record), &counts);
    });
  }
  PromptDataset Take() { return std::move(dataset_); }

 private:
  absl::Status ReadRow(const Json& row, PromptRecord record, FileCounts* counts) {
    if (!row.is_object()) return InvalidArgument("a row must be an object");
    TAOPD_RETURN_IF_ERROR(ReadPrompt(row, &record, counts));
    const auto prompt_length = static_cast<int64_t>(record.prompt_ids.size());
    const bool overlong = prompt_length > options_.max_prompt_length;
    if (overlong && options_.filter_overlong_prompts) {
      ++counts->num_overlong;
      return absl::OkStatus();
    }
    if (options_.tokenize && tokenizer_ != nullptr)
      record.num_unknown_bytes = tokenizer_->CountUnknownBytes(record.prompt);
    if (options_.tokenize && prompt_length == 0) {
      return InvalidArgument("the prompt is empty",
                             record.num_unknown_bytes > 0
                                 ? ": the tokenizer has a token for none of its characters"
                                 : "");
    }
    if (overlong) {
      if (options_.truncation == Truncation::kError) {
        return InvalidArgument("the prompt has ", prompt_length,
                               " tokens, more than max_prompt_length ", options_.max_prompt_length,
                               " (filter_overlong_prompts drops such rows, truncation left, right "
                               "or middle cuts them)");
      }
      record.num_truncated_tokens = prompt_length - options_.max_prompt_length;
      record.prompt_ids = TruncateIds(std::move(record.prompt_ids), options_.max_prompt_length,
                                      options_.truncation);
      if (!record.prompt.empty())
        record.prompt = tokenizer_->Decode(record.prompt_ids, /*skip_special_tokens=*/false);
    }
    TAOPD_RETURN_IF_ERROR(ReadAnswer(row, &record));
    if (!options_.source_key.empty()) {
      if (const Json* source = FindPath(row, options_.source_key);
          source != nullptr && !source->is_null()) {
        if (!source->is_string())
          return InvalidArgument("\"", options_.source_key, "\" is not text");
        record.source = source->get<std::string>();
      }
    }
    if (!options_.response_key.empty()) TAOPD_RETURN_IF_ERROR(ReadResponse(row, &record));
    if (SeenBefore(record)) {
      ++counts->num_duplicates;
      if (options_.drop_duplicates) return absl::OkStatus();
    }
    ++counts->num_records;
    counts->num_truncated += overlong ? 1 : 0;
    counts->num_unknown_bytes += record.num_unknown_bytes;
    dataset_.records.push_back(std::move(record));
    return absl::OkStatus();
  }

  absl::Status ReadPrompt(const Json& row, PromptRecord* record, FileCounts* counts) {
    const std::string& key = options_.prompt_key;
    const PromptTemplate& words = options_.prompt_template;
    if (const Json* ids = FindPath(row, key + "_ids"); ids != nullptr && !ids->is_null()) {
      if (!words.name.empty() || !words.system.empty()) {
        return InvalidArgument(
            "\"", key,
            "_ids\" are token ids: no prompt template or system prompt can be put around them");
      }
      TAOPD_ASSIGN_OR_RETURN(record->prompt_ids, ReadIds(*ids, key + "_ids", options_.vocab_size));
      return record->prompt_ids.empty() ? InvalidArgument("the prompt is empty") : absl::OkStatus();
    }
    const Json* prompt = FindPath(row, key);
    if (prompt == nullptr)
      return InvalidArgument("has neither \"", key, "\" nor \"", key, "_ids\"");
    if (prompt->is_string()) {
      const std::string text = FillTemplate(words, prompt->get<std::string>());
      if (text.empty()) return InvalidArgument("the prompt is empty");
      if (!options_.text_as_chat && words.system.empty()) {
        record->prompt = text;
        return Tokenize(record->prompt, key, options_.add_special_tokens, &record->prompt_ids);
      }
      record->messages = Json::array({Json{{"role", "user"}, {"content", text}}});
    } else if (prompt->is_array()) {
      TAOPD_RETURN_IF_ERROR(CheckMessages(*prompt, key));
      record->messages = *prompt;
      if (!words.name.empty()) {
        Json& last = record->messages.back();
        if (last["role"] != "user" || !last["content"].is_string()) {
          return InvalidArgument(
              "\"", key, "\": the last message is not a user's text, so the prompt template ",
              words.name, " has no question");
        }
        last["content"] = FillTemplate(words, last["content"].get<std::string>());
      }
    } else {
      return InvalidArgument("\"", key, "\" is neither text nor a list of messages");
    }
    if (!words.system.empty()) {
      if (record->messages.front()["role"] == "system") {
        ++counts->num_own_system;
      } else {
        record->messages.insert(record->messages.begin(),
                                Json{{"role", "system"}, {"content", words.system}});
      }
    }
    if (options_.messages_as_text) {
      for (const Json& message : record->messages) {
        if (!message["content"].is_string())
          return InvalidArgument("\"", key, "\": a message's content is not text");
        record->prompt +=
            (record->prompt.empty() ? "" : "\n\n") + message["content"].get<std::string>();
      }
      record->messages = nullptr;
      return Tokenize(record->prompt, key, options_.add_special_tokens, &record->prompt_ids);
    }
    if (!options_.tokenize) return absl::OkStatus();
    if (options_.render == nullptr) {
      return InvalidArgument(
          "\"", key, "\" is a list of messages but the model has no chat template; give text, \"",
          key, "_ids\", or apply_chat_template never");
    }
    TAOPD_ASSIGN_OR_RETURN(record->prompt, options_.render(record->messages));
    return Tokenize(record->prompt, key, /*add_special_tokens=*/false, &record->prompt_ids);
  }

  absl::Status Tokenize(const std::string& text, const std::string& key, bool add_special_tokens,
                        std::vector<int32_t>* ids) {
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

  absl::Status ReadAnswer(const Json& row, PromptRecord* record) {
    if (options_.answer_key.empty()) return absl::OkStatus();
    std::string key = options_.answer_key;
    const Json* answer = FindPath(row, key);
    if (answer == nullptr) answer = FindPath(row, key = kVerlAnswer);
    if (answer == nullptr || answer->is_null()) return absl::OkStatus();
    if (!answer->is_string() && !answer->is_number())
      return InvalidArgument("\"", key, "\" is neither text nor a number");
    record->answer = answer->is_string() ? answer->get<std::string>() : answer->dump();
    return absl::OkStatus();
  }

  absl::Status ReadResponse(const Json& row, PromptRecord* record) {
    const std::string& key = options_.response_key;
    if (const Json* ids = FindPath(row, key + "_ids"); ids != nullptr && !ids->is_null()) {
      TAOPD_ASSIGN_OR_RETURN(record->response_ids,
                             ReadIds(*ids, key + "_ids", options_.vocab_size));
    } else if (const Json* text = FindPath(row, key); text != nullptr) {
      if (!text->is_string()) return InvalidArgument("\"", key, "\" is not text");
      TAOPD_RETURN_IF_ERROR(Tokenize(text->get<std::string>(), key, /*add_special_tokens=*/false,
                                     &record->response_ids));
    } else {
      return InvalidArgument("has neither \"", key, "\" nor \"", key, "_ids\"");
    }
    const auto eos = static_cast<int32_t>(options_.append_eos_id);
    if (eos >= 0 && (record->response_ids.empty() || record->response_ids.back() != eos)) {
      record->response_ids.push_back(eos);
    }
    if (record->response_ids.empty()) return InvalidArgument("the response is empty");
    const auto length =
        static_cast<int64_t>(record->prompt_ids.size() + record->response_ids.size());
    if (length > options_.max_length) {
      return InvalidArgument("prompt and response have ", length, " tokens, more than max_length ",
                             options_.max_length);
    }
    return absl::OkStatus();
  }

  // Whether a record with the same prompt (and given response) is there already. The hash is
  // confirmed, so the count is exact.
  bool SeenBefore(const PromptRecord& record) {
    const std::string key = Concat(record.prompt, options_.tokenize ? "" : record.messages.dump());
    const std::string_view ids(reinterpret_cast<const char*>(record.prompt_ids.data()),
                               record.prompt_ids.size() * sizeof(int32_t));
    const size_t hash =
        std::hash<std::string_view>()(key) * 31 + std::hash<std::string_view>()(ids);
    const auto [begin, end] = by_hash_.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
      const PromptRecord& other = dataset_.records[it->second];
      if (other.prompt_ids == record.prompt_ids && other.prompt == record.prompt &&
          other.messages == record.messages && other.response_ids == record.response_ids) {
        return true;
      }
    }
    by_hash_.emplace(hash, dataset_.records.size());
    return false;
  }

  const Tokenizer* tokenizer_;
  const DatasetOptions& options_;
  std::vector<std::string> columns_;
  PromptDataset dataset_;
  std::unordered_multimap<size_t, size_t> by_hash_;  // first record of each prompt
};

}  // namespace

absl::StatusOr<Truncation> ParseTruncation(const std::string& name) {
  if (name == "error") return Truncation::kError;
  if (name == "left") return Truncation::kLeft;
  if (name == "right") return Truncation::kRight;
  if (name == "middle") return Truncation::kMiddle;
  return InvalidArgument("truncation \"", name, "\" is none of error, left, right, middle");
}

std::vector<int32_t> TruncateIds(std::vector<int32_t> ids, int64_t max_length,
                                 Truncation truncation) {
  const int64_t num_cut = static_cast<int64_t>(ids.size()) - max_length;
  if (num_cut <= 0) return ids;
  // The middle leaves the larger half at the end, as verl.
  const int64_t begin = truncation == Truncation::kLeft    ? 0
                        : truncation == Truncation::kRight ? max_length
                                                           : max_length / 2;
  ids.erase(ids.begin() + begin, ids.begin() + begin + num_cut);
  return ids;
}

absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths,
                                          const Tokenizer* tokenizer,
                                          const DatasetOptions& options) {
  Loader loader(tokenizer, options);
  std::string list;
  for (const std::string& path : paths) {
    list += (list.empty() ? "" : ", ") + path;
    TAOPD_RETURN_IF_ERROR(loader.Load(path));
  }
  PromptDataset dataset = loader.Take();
  if (dataset.records.empty()) {
    const int64_t overlong = dataset.num_overlong();
    return InvalidArgument(
        "no rows in ", list.empty() ? "an empty list of files" : list,
        overlong > 0 ? Concat(" (", overlong, " over-long prompts dropped)") : "");
  }
  return dataset;
}

absl::StatusOr<std::vector<DataShare>> WeighFiles(const PromptDataset& dataset,
                                                  const std::vector<double>& weights) {
  if (!weights.empty() && weights.size() != dataset.files.size()) {
    return InvalidArgument(weights.size(), " weights for ", dataset.files.size(), " files");
  }
  std::vector<DataShare> shares;
  for (size_t i = 0; i < dataset.files.size(); ++i) {
    const FileCounts& file = dataset.files[i];
    const double weight = weights.empty() ? 1.0 : weights[i];
    if (!(weight > 0 && weight <= 1000))
      return InvalidArgument(file.path, ": weight ", weight, " is not in (0, 1000]");
    if (file.num_records > 0 && std::llround(weight * static_cast<double>(file.num_records)) == 0) {
      return InvalidArgument(file.path, ": weight ", weight, " uses none of its ", file.num_records,
                             " rows");
    }
    shares.push_back({file.num_records, weight});
  }
  return shares;
}

}  // namespace taopd
