// taopd-trainer grade: verdicts on answers, line by line.
#include <CLI/CLI.hpp>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "trainer/cli/subcommand.h"
#include "trainer/commands/json_lines/json_lines.h"
#include "trainer/grading/grader.h"

namespace taopd {
namespace {

using nlohmann::ordered_json;

// Returns a row's text under a key, or `absent` if there is none.
absl::StatusOr<std::string> Text(const ordered_json& row, const std::string& key,
                                 const std::string& absent) {
  const auto member = row.find(key);
  if (member == row.end()) return absent;
  if (!member->is_string()) return InvalidArgument(key, " is not text");
  return member->get<std::string>();
}

class LineGrader {
 public:
  LineGrader(std::string grader, std::string pattern)
      : default_(std::move(grader)), pattern_(std::move(pattern)) {}

  absl::StatusOr<ordered_json> Grade(const ordered_json& row) {
    for (const char* key : {"response", "answer"}) {
      if (!row.contains(key)) return InvalidArgument(key, " is missing");
    }
    TAOPD_ASSIGN_OR_RETURN(const std::string response, Text(row, "response", ""));
    TAOPD_ASSIGN_OR_RETURN(const std::string answer, Text(row, "answer", ""));
    TAOPD_ASSIGN_OR_RETURN(const std::string name, Text(row, "grader", default_));
    TAOPD_ASSIGN_OR_RETURN(const std::string source, Text(row, "data_source", ""));
    TAOPD_ASSIGN_OR_RETURN(const grading::Grader* grader, Find(name));
    const grading::Verdict verdict = grader->Grade(response, answer, source);
    return ordered_json{
        {"correct", verdict.correct}, {"extracted", verdict.extracted}, {"reason", verdict.reason}};
  }

  absl::StatusOr<const grading::Grader*> Find(const std::string& name) {
    const auto known = graders_.find(name);
    if (known != graders_.end()) return known->second.get();
    TAOPD_ASSIGN_OR_RETURN(auto made,
                           grading::Grader::Make(name, name == default_ ? pattern_ : ""));
    return graders_.emplace(name, std::move(made)).first->second.get();
  }

 private:
  const std::string default_, pattern_;
  std::map<std::string, std::unique_ptr<grading::Grader>> graders_;
};

}  // namespace

Subcommand AddGrade(CLI::App& app) {
  struct Flags {
    std::string grader = "math";
    std::string pattern;
    bool list = false;
  };
  auto flags = std::make_shared<Flags>();
  CLI::App* command = app.add_subcommand(
      "grade",
      "Grade responses: read JSON lines {response, answer, grader?, data_source?} from the "
      "standard input, and write them with {correct, extracted, reason} added");
  command->add_option("--grader", flags->grader, "Grader of the lines that do not name one")
      ->capture_default_str();
  command->add_option("--answer-pattern", flags->pattern,
                      "RE2 expression whose first group is the answer (exact, numeric)");
  command->add_flag("--list", flags->list, "List the graders");
  return {command, [flags]() -> absl::Status {
            if (flags->list) {
              for (const grading::GraderInfo& info : grading::AllGraders())
                std::cout << info.name << "\n    " << info.summary << "\n";
              return absl::OkStatus();
            }
            LineGrader grader(flags->grader, flags->pattern);
            TAOPD_RETURN_IF_ERROR(BadUsage(grader.Find(flags->grader).status()));
            return AnswerJsonLines([&grader](const ordered_json& row) { return grader.Grade(row); },
                                   {"response", "answer", "grader", "data_source"});
          }};
}

}  // namespace taopd
