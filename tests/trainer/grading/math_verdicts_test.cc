// Compares verdicts with those of other programs: math-verify 0.9 inside the paper's evaluation,
// and the Qwen2.5-Math evaluation.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/files.h"
#include "trainer/grading/grader.h"

namespace taopd::grading {
namespace {

using nlohmann::json;

std::vector<json> ReadRows(const std::string& path) {
  std::vector<json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(json::parse(line));
  return rows;
}

struct Agreement {
  size_t rows = 0, false_correct = 0, false_wrong = 0;
  std::string listing;  // every disagreement with its reason, one per line
};

Agreement Compare(const std::vector<json>& rows, const std::string& grader_name,
                  const char* response, const char* answer) {
  auto grader = Grader::Make(grader_name, "");
  Agreement result;
  for (const json& row : rows) {
    const json& gold = row[answer].is_array() ? row[answer][0] : row[answer];
    const Verdict verdict =
        (*grader)->Grade(row[response].get<std::string>(), gold.get<std::string>());
    ++result.rows;
    if (verdict.correct == row["expected"].get<bool>()) continue;
    ++(verdict.correct ? result.false_correct : result.false_wrong);
    const std::string where =
        row.contains("case") ? row["case"].get<std::string>() : gold.get<std::string>();
    result.listing += (verdict.correct ? "correct here: " : "wrong here: ") + where + " | read " +
                      verdict.extracted + " | " + verdict.reason + "\n";
  }
  return result;
}

// Returns the part of golden/disagreements.txt under "## name".
std::string ListedDisagreements(const std::string& name) {
  const std::string text =
      testing::ReadFile(testing::SourcePath("tests/trainer/grading/golden/disagreements.txt"));
  const std::string header = "## " + name + "\n";
  const size_t begin = text.find(header);
  if (begin == std::string::npos) return "(no part " + name + ")";
  const size_t first = begin + header.size();
  std::string part;
  std::istringstream lines(text.substr(first, text.find("\n## ", first - 1) - first));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') part += line + "\n";
  }
  return part;
}

// Expects the disagreements that the file lists, and no more than the project accepts.
void ExpectAgreement(const std::vector<json>& rows, const std::string& name) {
  constexpr double kMinAgreement = 0.985, kMaxFalseCorrect = 0.003;
  const Agreement result = Compare(rows, "math", "response", "answer");
  const auto count = static_cast<double>(result.rows);
  EXPECT_LE(static_cast<double>(result.false_correct + result.false_wrong),
            (1 - kMinAgreement) * count);
  EXPECT_LE(static_cast<double>(result.false_correct), kMaxFalseCorrect * count);
  EXPECT_EQ(result.listing, ListedDisagreements(name));
}

TEST(MathVerdicts, PaperGrader) {
  const std::string path = testing::SharedData("math/paper_grader_verdicts.jsonl");
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  const auto rows = ReadRows(path);
  EXPECT_GE(rows.size(), 2500u);
  ExpectAgreement(rows, "paper_grader_verdicts");
}

// Spelling variations of published answers, judged by math-verify when golden/make_verdicts.py
// wrote them.
TEST(MathVerdicts, SpellingVariations) {
  const auto rows = ReadRows(testing::SourcePath("tests/trainer/grading/golden/verdicts.jsonl"));
  ASSERT_GE(rows.size(), 1000u);
  ExpectAgreement(rows, "verdicts");
}

TEST(MathVerdicts, CasesOfMathVerifyAndQwenMath) {
  const std::string path = testing::SharedData("math_verify_cases.jsonl");
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  const struct {
    std::string program, grader;
    size_t num_rows, max_disagreements;
  } cases[] = {{"math-verify", "math", 163, 3}, {"qwen2.5-math", "qwen2.5-math", 48, 2}};
  for (const auto& c : cases) {
    std::vector<json> rows = ReadRows(path);
    std::erase_if(rows, [&](const json& row) { return row["grader"] != c.program; });
    const Agreement result = Compare(rows, c.grader, "pred", "gold");
    EXPECT_EQ(result.rows, c.num_rows) << c.program;
    EXPECT_LE(result.false_correct + result.false_wrong, c.max_disagreements) << result.listing;
    EXPECT_EQ(result.listing, ListedDisagreements("math_verify_cases " + c.program));
  }
}

}  // namespace
}  // namespace taopd::grading
