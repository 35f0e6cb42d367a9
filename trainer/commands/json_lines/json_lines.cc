#include "trainer/commands/json_lines/json_lines.h"

#include <algorithm>
#include <iostream>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

// Reads one line without its end; bytes beyond the limit are read and dropped.
bool ReadLine(std::istream& in, std::string* line, bool* is_too_long) {
  line->clear();
  *is_too_long = false;
  std::streambuf* buffer = in.rdbuf();
  for (int c = buffer->sbumpc(); c != std::char_traits<char>::eof(); c = buffer->sbumpc()) {
    if (c == '\n') return true;
    if (static_cast<int64_t>(line->size()) < kMaxJsonlLineBytes) {
      line->push_back(static_cast<char>(c));
    } else {
      *is_too_long = true;
    }
  }
  return !line->empty();
}

ordered_json OtherKeys(const ordered_json& line, const std::vector<std::string>& read_keys) {
  ordered_json others = ordered_json::object();
  for (const auto& [key, value] : line.items()) {
    if (std::ranges::find(read_keys, key) == read_keys.end()) others[key] = value;
  }
  return others;
}

// Adds the answer to a line after the keys that are carried over. `*out` has those even without an
// answer.
absl::Status AddAnswer(const AnswerObject& answer, const std::vector<std::string>& read_keys,
                       const std::string& line, ordered_json* out) {
  TAOPD_ASSIGN_OR_RETURN(const ordered_json value, ParseOrderedJson(line, "line"));
  if (!value.is_object()) return InvalidArgument("line is not a JSON object");
  if (!read_keys.empty()) *out = OtherKeys(value, read_keys);
  if (out->contains("error")) {
    out->erase("error");
    return InvalidArgument("key \"error\" is one of the answer's own");
  }
  TAOPD_ASSIGN_OR_RETURN(const ordered_json answered, answer(value));
  for (const auto& [key, answer_value] : answered.items()) {
    if (out->contains(key)) return InvalidArgument("key \"", key, "\" is one of the answer's own");
  }
  out->update(answered);
  return absl::OkStatus();
}

}  // namespace

absl::Status AnswerJsonLines(const AnswerObject& answer,
                             const std::vector<std::string>& read_keys) {
  bool has_failed = false;
  std::string line;
  bool is_too_long = false;
  while (ReadLine(std::cin, &line, &is_too_long)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ordered_json out = ordered_json::object();
    const absl::Status status = is_too_long ? ResourceExhausted("line is longer than the limit of ",
                                                                kMaxJsonlLineBytes, " bytes")
                                            : AddAnswer(answer, read_keys, line, &out);
    if (!status.ok()) {
      has_failed = true;
      out["error"] = std::string(status.message());
    }
    // Flush, so that a program at the other end can work line by line.
    std::cout << JsonText(out) << std::endl;
    if (!std::cout) return BadData(Unavailable("standard output is closed"));
  }
  return WithoutMessage(has_failed ? kExitData : kExitOk);
}

absl::Status CheckKeys(const ordered_json& line, std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : line.items()) {
    if (std::ranges::find(known, key) == known.end())
      return InvalidArgument("unknown key \"", key, "\"");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReadFlag(const ordered_json& line, const char* name, bool absent) {
  if (!line.contains(name)) return absent;
  if (!line[name].is_boolean()) return InvalidArgument(name, " is not true or false");
  return line[name].get<bool>();
}

}  // namespace taopd
