#include "trainer/cli/json_lines.h"

#include <iostream>
#include <string>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

// One line without its end; what exceeds the limit is read and dropped.
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

}  // namespace

int AnswerJsonLines(
    const std::function<absl::StatusOr<ordered_json>(const ordered_json& line)>& answer) {
  bool has_failed = false;
  auto answer_line = [&](const std::string& line,
                         bool is_too_long) -> absl::StatusOr<ordered_json> {
    if (is_too_long) {
      return ResourceExhausted("line is longer than the limit of ", kMaxJsonlLineBytes, " bytes");
    }
    TAOPD_ASSIGN_OR_RETURN(const ordered_json value, ParseOrderedJson(line, "line"));
    if (!value.is_object()) return InvalidArgument("line is not a JSON object");
    return answer(value);
  };
  std::string line;
  bool is_too_long = false;
  while (ReadLine(std::cin, &line, &is_too_long)) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto answered = answer_line(line, is_too_long);
    ordered_json out;
    if (answered.ok()) {
      out = *answered;
    } else {
      has_failed = true;
      out["error"] = std::string(answered.status().message());
    }
    // Flushed, so that a program at the other end can ask line by line.
    std::cout << out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
  }
  return static_cast<int>(has_failed ? ExitCode::kBadData : ExitCode::kFinished);
}

}  // namespace taopd
