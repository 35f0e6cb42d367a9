#include "trainer/eval/journal.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/io/file.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Describes the first member that differs. Returns an empty string if none does.
std::string Difference(const Json& asked, const Json& found) {
  for (const auto& [key, value] : asked.items()) {
    if (!found.contains(key)) return Concat(key, " is not recorded there");
    if (found.at(key) == value) continue;
    if (key == "weights") return "the model's weights have changed since";
    if (key == "data") return "data.val names other files, or their rows have changed";
    return Concat(key, " is ", value.dump(), ", there ", found.at(key).dump());
  }
  for (const auto& [key, value] : found.items()) {
    if (!asked.contains(key)) return Concat(key, " is recorded there only");
  }
  return "";
}

// Returns the number of bytes up to and including the last newline.
absl::StatusOr<int64_t> BytesOfWholeLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return NotFound(path, ": cannot be opened");
  auto size = static_cast<int64_t>(file.tellg());
  std::string block(1 << 16, '\0');
  while (size > 0) {
    const int64_t begin = std::max<int64_t>(0, size - static_cast<int64_t>(block.size()));
    file.seekg(begin);
    file.read(block.data(), size - begin);
    if (!file) return DataLoss(path, ": cannot be read");
    const size_t newline = std::string_view(block.data(), size - begin).rfind('\n');
    if (newline != std::string_view::npos) return begin + static_cast<int64_t>(newline) + 1;
    size = begin;
  }
  return 0;
}

}  // namespace

absl::StatusOr<EvalJournal> EvalJournal::Open(const std::string& path, const Json& evaluation,
                                              bool overwrite) {
  if (const auto parent = std::filesystem::path(path).parent_path(); !parent.empty()) {
    TAOPD_RETURN_IF_ERROR(MakeDirectories(parent.string()));
  }
  const std::string advice = "; choose another --responses, or --overwrite it";
  int64_t size = 0;
  if (!overwrite && FileExists(path)) {
    std::ifstream file(path, std::ios::binary);
    std::string line;
    std::getline(file, line);
    TAOPD_ASSIGN_OR_RETURN(size, BytesOfWholeLines(path));
    // A process that was killed while it wrote the first line has left a part of it, or nothing.
    const bool is_torn =
        size == 0 && JsonlWriter::LineOf({{"evaluation", evaluation}}).starts_with(line);
    if (!is_torn) {
      const auto first = ParseOrderedJson(line, path);
      if (!first.ok() || !first->is_object() || !first->contains("evaluation")) {
        return FailedPrecondition(path, ": does not begin with an evaluation's configuration",
                                  advice);
      }
      const std::string difference = Difference(evaluation, first->at("evaluation"));
      if (!difference.empty())
        return FailedPrecondition(path, ": holds another evaluation: ", difference, advice);
    }
  }
  EvalJournal journal(path, evaluation);
  if (size == 0) {
    // Checks early that the file can be written, without changing it.
    TAOPD_RETURN_IF_ERROR(JsonlWriter::Open(path).status());
    return journal;
  }
  TAOPD_ASSIGN_OR_RETURN(journal.writer_, JsonlWriter::Open(path, size));
  TAOPD_RETURN_IF_ERROR(ReadOrderedJsonl(path, [&](const Json& row, int64_t line) -> absl::Status {
    if (line == 1) return absl::OkStatus();
    for (const char* key : {"problem", "sample"}) {
      if (!row.is_object() || !row.contains(key) || !row.at(key).is_number_unsigned()) {
        return DataLoss("no number \"", key, "\"");
      }
    }
    journal.rows_.insert_or_assign(
        {row.at("problem").get<int64_t>(), row.at("sample").get<int64_t>()}, row);
    return absl::OkStatus();
  }));
  return journal;
}

absl::Status EvalJournal::Add(const Json& row) {
  if (!writer_) {
    TAOPD_ASSIGN_OR_RETURN(writer_, JsonlWriter::Open(path_, 0));
    TAOPD_RETURN_IF_ERROR(writer_->Write({{"evaluation", evaluation_}}));
  }
  TAOPD_RETURN_IF_ERROR(writer_->Write(row));
  ++num_added_;
  return absl::OkStatus();
}

}  // namespace taopd
