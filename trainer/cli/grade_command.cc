// taopd-trainer grade: verdicts on answers, line by line.
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/cli/subcommand.h"
#include "trainer/grading/grader.h"

namespace taopd {
namespace {

using nlohmann::json;

constexpr size_t kMaxLineBytes = size_t{16} << 20;

// One line without its end. False at the end of the input; of a longer line only the first
// kMaxLineBytes + 1 bytes are kept.
bool ReadLine(std::istream& in, std::string* line) {
  line->clear();
  std::streambuf* buffer = in.rdbuf();
  int c = buffer->sbumpc();
  if (c == std::char_traits<char>::eof()) return false;
  for (; c != std::char_traits<char>::eof() && c != '\n'; c = buffer->sbumpc()) {
    if (line->size() <= kMaxLineBytes) line->push_back(static_cast<char>(c));
  }
  return true;
}

class LineGrader {
 public:
  LineGrader(std::string grader, std::string pattern) : default_(std::move(grader)), pattern_(std::move(pattern)) {}

  absl::StatusOr<Verdict> Grade(const std::string& line) {
    if (line.size() > kMaxLineBytes) return InvalidArgument("a line has more than ", kMaxLineBytes, " bytes");
    const json row = json::parse(line, nullptr, false);
    if (!row.is_object()) return InvalidArgument("not a JSON object");
    for (const auto& [key, value] : row.items()) {
      if (key != "response" && key != "answer" && key != "grader" && key != "data_source") {
        return InvalidArgument("unknown key \"", key, "\"; known: response, answer, grader, data_source");
      }
      if (!value.is_string()) return InvalidArgument(key, " is not text");
    }
    if (!row.contains("response") || !row.contains("answer")) return InvalidArgument("response or answer is missing");
    TAOPD_ASSIGN_OR_RETURN(const Grader* grader, Find(row.value("grader", default_)));
    return grader->Grade(row["response"].get_ref<const std::string&>(), row["answer"].get_ref<const std::string&>(),
                         row.value("data_source", ""));
  }

  absl::StatusOr<const Grader*> Find(const std::string& name) {
    auto& slot = graders_[name];
    if (slot == nullptr) {
      auto made = Grader::Make(name, name == default_ ? pattern_ : "");
      if (!made.ok()) {
        graders_.erase(name);
        return made.status();
      }
      slot = *std::move(made);
    }
    return slot.get();
  }

 private:
  const std::string default_, pattern_;
  std::map<std::string, std::unique_ptr<Grader>> graders_;
};

int GradeLines(LineGrader* grader) {
  std::string line;
  while (ReadLine(std::cin, &line)) {
    const auto verdict = grader->Grade(line);
    json out;
    if (verdict.ok()) {
      out = {{"correct", verdict->correct}, {"extracted", verdict->extracted}, {"reason", verdict->reason}};
    } else {
      out = {{"error", std::string(verdict.status().message())}};
    }
    // Bytes that are not UTF-8 in what was extracted are replaced.
    std::cout << out.dump(-1, ' ', false, json::error_handler_t::replace) << '\n';
    if (!std::cout) return EndCommand(BadData(Unavailable("standard output is closed")));
  }
  std::cout.flush();
  return 0;
}

}  // namespace

Subcommand AddGrade(CLI::App& app) {
  struct Flags {
    std::string grader = "math";
    std::string pattern;
    bool list = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "grade", "Verdicts on answers: JSON lines {response, answer, grader?, data_source?} in, {correct, extracted, reason} out");
  command->add_option("--grader", flags->grader, "Grader of lines that name none")->capture_default_str();
  command->add_option("--answer-pattern", flags->pattern, "RE2 expression whose first group is the answer (exact, numeric)");
  command->add_flag("--list", flags->list, "List the graders");
  return {command, [flags] {
            if (flags->list) {
              for (const GraderInfo& info : AllGraders()) std::cout << info.name << "\n    " << info.summary << "\n";
              return 0;
            }
            LineGrader grader(flags->grader, flags->pattern);
            if (const auto found = grader.Find(flags->grader); !found.ok()) return EndCommand(BadConfig(found.status()));
            return GradeLines(&grader);
          }};
}

}  // namespace taopd
