#include "trainer/data/dataset_summary.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBarWidth = 40;
constexpr size_t kMaxBins = 16;

Json TokensJson(std::vector<int64_t> token_counts) {
  const LengthHistogram lengths = MeasureLengths(std::move(token_counts));
  Json tokens = {{"total", lengths.total},   {"min", lengths.min}, {"mean", lengths.mean},
                 {"median", lengths.median}, {"p99", lengths.p99}, {"max", lengths.max}};
  tokens["histogram"] = Json::array();
  for (const auto& bin : lengths.bins) {
    tokens["histogram"].push_back({{"low", bin.low}, {"high", bin.high}, {"count", bin.count}});
  }
  return tokens;
}

Json SourcesJson(const PromptDataset& dataset) {
  struct Counts {
    int64_t records = 0, answers = 0;
  };
  std::map<std::string, Counts> by_source;
  for (const PromptRecord& record : dataset.records) {
    Counts& counts = by_source[record.source];
    ++counts.records;
    counts.answers += record.answer.empty() ? 0 : 1;
  }
  Json list = Json::array();
  for (const auto& [source, counts] : by_source) {
    list.push_back(
        {{"source", source}, {"num_records", counts.records}, {"num_answers", counts.answers}});
  }
  return list;
}

Json FilesJson(const PromptDataset& dataset, const std::vector<double>& weights) {
  Json list = Json::array();
  for (size_t i = 0; i < dataset.files.size(); ++i) {
    const FileCounts& file = dataset.files[i];
    list.push_back({{"path", file.path},
                    {"format", file.format},
                    {"num_rows", file.num_rows},
                    {"num_records", file.num_records},
                    {"num_overlong_dropped", file.num_overlong},
                    {"num_truncated", file.num_truncated},
                    {"num_unknown_bytes", file.num_unknown_bytes},
                    {"num_duplicates", file.num_duplicates},
                    {"num_own_system_prompt", file.num_own_system},
                    {"weight", weights.empty() ? 1.0 : weights[i]}});
  }
  return list;
}

// `tokenizer` may be null.
Json SampleJson(const PromptRecord& record, const Tokenizer* tokenizer, bool has_teacher_prompt) {
  Json sample = {{"id", record.id},
                 {"source", record.source},
                 {"answer", record.answer},
                 {"prompt", record.prompt},
                 {"prompt_ids", record.prompt_ids}};
  if (!record.response_ids.empty()) {
    if (tokenizer != nullptr) {
      sample["response"] = tokenizer->Decode(record.response_ids, /*skip_special_tokens=*/false);
    }
    sample["response_ids"] = record.response_ids;
  }
  if (has_teacher_prompt) {
    sample["teacher_prompt"] = record.teacher_prompt.text;
    sample["teacher_prompt_ids"] = record.teacher_prompt.ids;
  }
  return sample;
}

// Formats the lengths of "a prompt" or "a teacher's prompt".
std::string LengthsText(const char* what, const Json& tokens) {
  std::string text = absl::StrFormat(
      "  tokens of %s: min %lld, mean %.1f, median %lld, p99 %lld, max %lld; in all %lld\n", what,
      tokens["min"].get<long long>(), tokens["mean"].get<double>(),
      tokens["median"].get<long long>(), tokens["p99"].get<long long>(),
      tokens["max"].get<long long>(), tokens["total"].get<long long>());
  int64_t most = 1;
  for (const Json& bin : tokens["histogram"]) most = std::max(most, bin["count"].get<int64_t>());
  for (const Json& bin : tokens["histogram"]) {
    const auto count = bin["count"].get<int64_t>();
    text += absl::StrFormat("  %6lld to %6lld %8lld ", bin["low"].get<long long>(),
                            bin["high"].get<long long>() - 1, static_cast<long long>(count)) +
            std::string(count * kBarWidth / most, '#') + "\n";
  }
  return text;
}

std::string IdsText(const Json& ids) {
  std::string text;
  for (const Json& id : ids) text += Concat(" ", id.get<int64_t>());
  return text + "\n";
}

std::string SampleText(const Json& sample) {
  const std::string answer = sample["answer"];
  std::string text =
      "  --- " + sample["id"].get<std::string>() + " (" + sample["source"].get<std::string>() +
      ")" + (answer.empty() ? "" : ", answer " + answer) + "\n" +
      sample["prompt"].get<std::string>() + "\n  ids" + IdsText(sample["prompt_ids"]);
  if (sample.contains("response_ids")) {
    text += "  the given response\n";
    if (sample.contains("response")) text += sample["response"].get<std::string>() + "\n";
    text += "  ids" + IdsText(sample["response_ids"]);
  }
  if (sample.contains("teacher_prompt")) {
    text += "  the teacher's\n" + sample["teacher_prompt"].get<std::string>() + "\n  ids" +
            IdsText(sample["teacher_prompt_ids"]);
  }
  return text;
}

}  // namespace

LengthHistogram MeasureLengths(std::vector<int64_t> lengths) {
  LengthHistogram histogram;
  if (lengths.empty()) return histogram;
  std::ranges::sort(lengths);
  const size_t count = lengths.size();
  histogram.min = lengths.front();
  histogram.max = lengths.back();
  histogram.median = lengths[count / 2];
  histogram.p99 = lengths[(count - 1) * 99 / 100];
  histogram.total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  histogram.mean = static_cast<double>(histogram.total) / static_cast<double>(count);
  int64_t width = 1;
  while (histogram.max / width - histogram.min / width >= static_cast<int64_t>(kMaxBins))
    width *= 2;
  for (int64_t low = histogram.min / width * width; low <= histogram.max; low += width) {
    const auto begin = std::ranges::lower_bound(lengths, low);
    const auto end = std::ranges::lower_bound(lengths, low + width);
    histogram.bins.push_back({low, low + width, end - begin});
  }
  return histogram;
}

Json DatasetSummaryJson(const std::string& name, const PromptDataset& dataset,
                        const SummaryOptions& options) {
  Json summary;
  summary["name"] = name;
  summary["num_records"] = dataset.records.size();
  summary["num_overlong_dropped"] = dataset.num_overlong();
  summary["num_truncated"] = dataset.num_truncated();
  summary["num_unknown_bytes"] = dataset.num_unknown_bytes();
  summary["num_duplicates"] = dataset.num_duplicates();
  summary["files"] = FilesJson(dataset, options.weights);
  summary["sources"] = SourcesJson(dataset);
  std::vector<int64_t> prompts, teacher_prompts, responses;
  bool has_teacher_prompts = false;
  for (const PromptRecord& record : dataset.records) {
    prompts.push_back(static_cast<int64_t>(record.prompt_ids.size()));
    has_teacher_prompts |= !record.teacher_prompt.is_plain();
    if (!record.teacher_prompt.ids.empty())
      teacher_prompts.push_back(static_cast<int64_t>(record.teacher_prompt.ids.size()));
    if (!record.response_ids.empty())
      responses.push_back(static_cast<int64_t>(record.response_ids.size()));
  }
  summary["prompt_tokens"] = TokensJson(std::move(prompts));
  if (has_teacher_prompts) {
    summary["num_teacher_prompts_missing"] = dataset.num_teacher_prompt_missing();
    summary["teacher_prompt_tokens"] = TokensJson(std::move(teacher_prompts));
  }
  if (!responses.empty()) summary["response_tokens"] = TokensJson(std::move(responses));
  summary["samples"] = Json::array();
  const auto size = static_cast<int64_t>(dataset.records.size());
  const int64_t num_samples = std::min(options.num_samples, size);
  for (int64_t i = 0; i < num_samples; ++i) {
    const PromptRecord& record =
        dataset.records[num_samples == 1 ? 0 : i * (size - 1) / (num_samples - 1)];
    summary["samples"].push_back(SampleJson(record, options.tokenizer, has_teacher_prompts));
  }
  return summary;
}

std::string DatasetSummaryText(const Json& summary) {
  std::string text = absl::StrFormat(
      "%s: %lld prompts, %lld over-long dropped, %lld truncated, %lld duplicates\n",
      summary["name"].get<std::string>().c_str(), summary["num_records"].get<long long>(),
      summary["num_overlong_dropped"].get<long long>(), summary["num_truncated"].get<long long>(),
      summary["num_duplicates"].get<long long>());
  text += absl::StrFormat("  %9s %9s %9s %9s %10s %10s %7s  %s\n", "rows", "prompts", "over-long",
                          "truncated", "duplicates", "own system", "weight", "file");
  for (const Json& file : summary["files"]) {
    text +=
        absl::StrFormat(
            "  %9lld %9lld %9lld %9lld %10lld %10lld %7.4g  ", file["num_rows"].get<long long>(),
            file["num_records"].get<long long>(), file["num_overlong_dropped"].get<long long>(),
            file["num_truncated"].get<long long>(), file["num_duplicates"].get<long long>(),
            file["num_own_system_prompt"].get<long long>(), file["weight"].get<double>()) +
        file["path"].get<std::string>() + "\n";
  }
  if (const auto unknown = summary["num_unknown_bytes"].get<long long>(); unknown > 0) {
    text += absl::StrFormat(
        "  %lld bytes of the prompts are left out: the tokenizer has no token for them\n", unknown);
  }
  text += absl::StrFormat("  %9s %9s  %s\n", "prompts", "answers", "source");
  for (const Json& source : summary["sources"]) {
    text += absl::StrFormat("  %9lld %9lld  ", source["num_records"].get<long long>(),
                            source["num_answers"].get<long long>()) +
            source["source"].get<std::string>() + "\n";
  }
  text += LengthsText("a prompt", summary["prompt_tokens"]);
  if (summary.contains("teacher_prompt_tokens")) {
    text += absl::StrFormat("  %lld prompts lack a part of the teacher's prompt\n",
                            summary["num_teacher_prompts_missing"].get<long long>()) +
            LengthsText("a teacher's prompt", summary["teacher_prompt_tokens"]);
  }
  if (summary.contains("response_tokens"))
    text += LengthsText("a given response", summary["response_tokens"]);
  for (const Json& sample : summary["samples"]) text += SampleText(sample);
  return text;
}

}  // namespace taopd
