#include <absl/strings/str_join.h>

#include <exception>
#include <set>
#include <string>

#include "trainer/grading/graders/grader_rows.h"
#include "trainer/grading/text.h"

namespace taopd::grading {
namespace {

using GradeFunction = Verdict (*)(std::string_view response, std::string_view answer);

class FunctionGrader final : public Grader {
 public:
  explicit FunctionGrader(GradeFunction grade) : grade_(grade) {}

 private:
  Verdict GradeAnswer(std::string_view response, std::string_view answer,
                      std::string_view) const override {
    return grade_(response, answer);
  }
  const GradeFunction grade_;
};

// Returns whether the answers of a data source are letters among choices. The publisher's name
// (allenai/...) does not count.
bool HasChoices(std::string_view source) {
  // Without a slash this removes nothing: npos + 1 is 0.
  source.remove_prefix(source.rfind('/') + 1);
  std::string name = LowerCase(source);
  ReplaceAll(&name, "-", "_");
  ReplaceAll(&name, " ", "_");
  static const std::set<std::string> names = {"ai2_arc", "arc_c",    "arc_challenge",
                                              "arc_e",   "arc_easy", "mmlu_pro"};
  return names.contains(name);
}

// TA-OPD's routing (default_compute_score), in which the data source math_dapo has a grader of its
// own. TA-OPD's evaluation uses math-verify for choices too. Here choices have their own grader,
// because math-verify does not read "(B)" and "B." as B.
class AutoGrader final : public Grader {
  Verdict GradeAnswer(std::string_view response, std::string_view answer,
                      std::string_view source) const override {
    if (source == "math_dapo") return GradeDapo(response, answer);
    if (HasChoices(source)) return GradeChoice(response, answer);
    Verdict verdict = GradeMath(response, answer);
    if (verdict.correct || !verdict.extracted.empty()) return verdict;
    // There is no mathematics to compare, but the response may hold another form of answer.
    const std::string wanted = Stripped(answer);
    if (wanted.size() == 1 && wanted[0] >= 'A' && wanted[0] <= 'J') {
      return GradeChoice(response, answer);
    }
    if (Stripped(response) == wanted) return {true, wanted, "same text"};
    return verdict;
  }
};

template <GradeFunction kGrade>
absl::StatusOr<std::unique_ptr<Grader>> MakeFunctionGrader(const std::string&) {
  return std::make_unique<FunctionGrader>(kGrade);
}
absl::StatusOr<std::unique_ptr<Grader>> MakeAutoGrader(const std::string& answer_pattern) {
  if (!answer_pattern.empty()) return MakeExactGrader(answer_pattern);
  return std::make_unique<AutoGrader>();
}

struct Row {
  GraderInfo info;
  bool takes_pattern;
  absl::StatusOr<std::unique_ptr<Grader>> (*make)(const std::string& answer_pattern);
};

const std::vector<Row>& Rows() {
  static const std::vector<Row> rows = {
      {{"math",
        "the answers are mathematically equal, as the paper's evaluation judges (math-verify)"},
       false,
       MakeFunctionGrader<GradeMath>},
      {{"math_dapo", "the \"Answer:\" line equals the answer as normalized text (DAPO)"},
       false,
       MakeFunctionGrader<GradeDapo>},
      {{"auto",
        "chooses by the data source: math_dapo for the source of this name, choice for ARC and "
        "MMLU-Pro, and math for all others. If math finds nothing to compare, a letter or the "
        "whole text is compared. With answer_pattern it is exact"},
       true,
       MakeAutoGrader},
      {{"qwen2.5-math", "the answers are equal by the rules of the Qwen2.5-Math evaluation"},
       false,
       MakeFunctionGrader<GradeQwenMath>},
      {{"choice", "the chosen letter equals the answer (ARC-c, MMLU-Pro)"},
       false,
       MakeFunctionGrader<GradeChoice>},
      {{"exact", "the extracted text equals the answer"}, true, MakeExactGrader},
      {{"numeric", "the extracted text and the answer are equal numbers"}, true, MakeNumericGrader},
      {{"regex", "the answer is an RE2 expression that the response matches"},
       false,
       MakeFunctionGrader<GradeRegex>},
  };
  return rows;
}

}  // namespace

const std::vector<GraderInfo>& AllGraders() {
  static const std::vector<GraderInfo> infos = [] {
    std::vector<GraderInfo> all;
    for (const Row& row : Rows()) all.push_back(row.info);
    return all;
  }();
  return infos;
}

std::vector<std::string> GraderNames() {
  std::vector<std::string> names;
  for (const GraderInfo& info : AllGraders()) names.push_back(info.name);
  return names;
}

absl::StatusOr<std::unique_ptr<Grader>> Grader::Make(const std::string& name,
                                                     const std::string& answer_pattern) {
  for (const Row& row : Rows()) {
    if (row.info.name != name) continue;
    if (!row.takes_pattern && !answer_pattern.empty()) {
      return InvalidArgument("answer_pattern \"", answer_pattern,
                             "\" has no meaning for the grader ", name,
                             ": it finds the answer itself");
    }
    return row.make(answer_pattern);
  }
  return InvalidArgument("grader \"", name, "\" is not one of ",
                         absl::StrJoin(GraderNames(), ", "));
}

Verdict Grader::Grade(std::string_view response, std::string_view answer,
                      std::string_view source) const {
  // Boost.Multiprecision reports overflow with exceptions.
  try {
    return GradeAnswer(response, answer, source);
  } catch (const std::exception& error) {
    return {false, "", std::string("arithmetic failed: ") + error.what()};
  }
}

}  // namespace taopd::grading
