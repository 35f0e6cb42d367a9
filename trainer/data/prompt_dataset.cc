#include "trainer/data/prompt_dataset.h"

#include <absl/strings/str_join.h>

#include <cmath>
#include <filesystem>
#include <utility>

#include "trainer/data/prompt_reader.h"
#include "trainer/data/row_reader.h"

namespace taopd {
namespace {

// Reads files into one data set and counts how each file's rows were used.
class Loader {
 public:
  Loader(const Tokenizer* tokenizer, const DatasetOptions& options)
      : options_(options), reader_(tokenizer, options) {}

  absl::Status Load(const std::string& path) {
    FileCounts& counts = dataset_.files.emplace_back();
    counts.path = path;
    counts.format = DataFormatOf(path) == DataFormat::kParquet ? "parquet" : "jsonl";
    const std::filesystem::path file(path);
    const auto add = [&](const nlohmann::ordered_json& row, int64_t number) -> absl::Status {
      ++counts.num_rows;
      const ConversationKeys keys = {options_.messages_key, options_.prompt_key,
                                     options_.response_key};
      const std::string id = Concat(file.filename().string(), ":", number);
      if (!IsConversation(row, keys)) return Read(row, id, file, &counts);
      TAOPD_ASSIGN_OR_RETURN(const std::vector<nlohmann::ordered_json> turns,
                             SplitConversation(row, keys, options_.assistant_turns));
      for (size_t i = 0; i < turns.size(); ++i) {
        TAOPD_RETURN_IF_ERROR(
            Read(turns[i], turns.size() == 1 ? id : Concat(id, ":", i + 1), file, &counts));
      }
      return absl::OkStatus();
    };
    return ReadRows(path, reader_.Columns(), add);
  }
  PromptDataset Take() { return std::move(dataset_); }

 private:
  absl::Status Read(const nlohmann::ordered_json& row, const std::string& id,
                    const std::filesystem::path& file, FileCounts* counts) {
    PromptRecord record;
    record.id = id;
    record.source = file.stem().string();
    TAOPD_ASSIGN_OR_RETURN(PromptReader::Row read, reader_.Read(row, std::move(record)));
    Add(std::move(read), counts);
    return absl::OkStatus();
  }

  void Add(PromptReader::Row row, FileCounts* counts) {
    counts->num_own_system += row.keeps_own_system ? 1 : 0;
    counts->num_teacher_prompt_missing += row.lacks_teacher_prompt ? 1 : 0;
    if (row.is_dropped) {
      // A row without the teacher's prompt was dropped for that, even if its own was cut.
      counts->num_overlong += row.is_overlong && !row.lacks_teacher_prompt ? 1 : 0;
      return;
    }
    if (SeenBefore(row.record)) ++counts->num_duplicates;
    ++counts->num_records;
    counts->num_truncated += row.is_overlong ? 1 : 0;
    counts->num_unknown_bytes += row.record.num_unknown_bytes;
    dataset_.records.push_back(std::move(row.record));
  }

  // Returns whether an earlier record has the same prompts and the same given response. A match of
  // the hashes is confirmed by a comparison, so the count is exact.
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
          other.messages == record.messages && other.response_ids == record.response_ids &&
          other.teacher_prompt == record.teacher_prompt) {
        return true;
      }
    }
    by_hash_.emplace(hash, dataset_.records.size());
    return false;
  }

  const DatasetOptions& options_;
  const PromptReader reader_;
  PromptDataset dataset_;
  // Maps the hash of a prompt to the first record with that prompt.
  std::unordered_multimap<size_t, size_t> by_hash_;
};

}  // namespace

absl::StatusOr<PromptDataset> LoadPrompts(const std::vector<std::string>& paths,
                                          const Tokenizer* tokenizer,
                                          const DatasetOptions& options) {
  Loader loader(tokenizer, options);
  for (const std::string& path : paths) TAOPD_RETURN_IF_ERROR(loader.Load(path));
  PromptDataset dataset = loader.Take();
  if (dataset.records.empty()) {
    const int64_t overlong = dataset.num_overlong(), missing = dataset.num_teacher_prompt_missing();
    return InvalidArgument(
        "no rows in ", paths.empty() ? "an empty list of files" : absl::StrJoin(paths, ", "),
        overlong > 0 ? Concat(" (", overlong, " over-long prompts dropped)") : "",
        missing > 0 ? Concat(" (", missing, " rows without the teacher's prompt dropped)") : "");
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
