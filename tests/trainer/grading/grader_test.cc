#include "trainer/grading/grader.h"

#include <set>

#include "common/io/parquet.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::grading {
namespace {

TEST(Grader, ExactComparesTheExtractedTextOrTheWholeResponse) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("exact", "#(.*)$"));
  EXPECT_TRUE(grader->Grade("w22 7+9#12846", "12846").correct);
  EXPECT_EQ(grader->Grade("w22 7+9#12847", "12846").extracted, "12847");
  for (const char* response : {"w22 7+9#12847", "no answer", "#12846 and more"})
    EXPECT_FALSE(grader->Grade(response, "12846").correct) << response;
  EXPECT_FALSE(grader->Grade("#", "0").correct);
  ASSERT_OK_AND_ASSIGN(auto whole, Grader::Make("exact", ""));
  EXPECT_TRUE(whole->Grade(" yes\n", "yes").correct);
  EXPECT_FALSE(whole->Grade("yes indeed", "yes").correct);
}

TEST(Grader, NumericIgnoresSpelling) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("numeric", "=\\s*([-+0-9.,e]+)"));
  EXPECT_TRUE(grader->Grade("x = 1,234.50", "1234.5").correct);
  EXPECT_TRUE(grader->Grade("x = 007", "7").correct);
  EXPECT_TRUE(grader->Grade("x = +7", "7").correct);
  EXPECT_FALSE(grader->Grade("x = 7.1", "7").correct);
  EXPECT_FALSE(grader->Grade("x = .", ".").correct);
  EXPECT_FALSE(grader->Grade("x = 1e999", "1e999").correct);
}

TEST(Grader, BadPatternsAreRefused) {
  EXPECT_ERROR(Grader::Make("exact", "(("), absl::StatusCode::kInvalidArgument, "answer_pattern");
  EXPECT_ERROR(Grader::Make("exact", "abc"), absl::StatusCode::kInvalidArgument, "no group");
  EXPECT_ERROR(Grader::Make("fuzzy", ""), absl::StatusCode::kInvalidArgument, "fuzzy");
  for (const char* reads_none : {"math", "regex"})
    EXPECT_ERROR(Grader::Make(reads_none, "(.*)"), absl::StatusCode::kInvalidArgument,
                 "answer_pattern");
}

TEST(Grader, HugeResponsesTakeLinearTime) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("exact", "(a*)*b"));
  EXPECT_FALSE(grader->Grade(std::string(1 << 20, 'a'), "x").correct);
}

TEST(Grader, EveryRowOfTheRegistryMakesAGrader) {
  std::set<std::string> names;
  for (const GraderInfo& info : AllGraders()) {
    EXPECT_OK(Grader::Make(info.name, ""));
    EXPECT_FALSE(info.summary.empty()) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
  }
  EXPECT_TRUE(names.count("math") && names.count("auto") && names.count("choice"));
}

TEST(Grader, RegexTakesTheAnswerAsPattern) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("regex", ""));
  EXPECT_TRUE(grader->Grade(" 12 cm\n", "[0-9]+ ?cm").correct);
  EXPECT_FALSE(grader->Grade("about 12 cm", "[0-9]+ ?cm").correct);
  EXPECT_THAT(grader->Grade("x", "((").reason, ::testing::HasSubstr("regular expression"));
}

// The default grader must find answers in any form, whatever the name of the source.
TEST(Grader, AutoTakesAnswersOfEveryForm) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("auto", ""));
  EXPECT_TRUE(grader->Grade("so it is 17.", "17").correct);
  EXPECT_TRUE(grader->Grade("Paris\n", "Paris").correct);
  EXPECT_TRUE(grader->Grade("Answer: B", "B").correct);
  EXPECT_FALSE(grader->Grade("Answer: C", "B").correct);
  EXPECT_FALSE(grader->Grade("London", "Paris").correct);
  ASSERT_OK_AND_ASSIGN(auto pattern, Grader::Make("auto", "#(.*)$"));
  EXPECT_TRUE(pattern->Grade("1+2 #3", "3").correct);
  EXPECT_EQ(pattern->Grade("1+2 = 3", "3").extracted, "");
}

TEST(Grader, AutoRoutesByDataSource) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("auto", ""));
  // DAPO requires an "Answer:" line and compares text; math-verify reads the box and compares
  // values.
  EXPECT_FALSE(grader->Grade("\\boxed{34}", "34", "math_dapo").correct);
  EXPECT_TRUE(grader->Grade("so\nAnswer: 34", "34", "math_dapo").correct);
  EXPECT_FALSE(grader->Grade("so\nAnswer: 68/2", "34", "math_dapo").correct);
  EXPECT_TRUE(grader->Grade("\\boxed{68/2}", "34", "aime").correct);
  EXPECT_TRUE(grader->Grade("\\boxed{68/2}", "34", "").correct);
  // Choices are letters, however they are framed.
  for (const char* source :
       {"arc_c", "ARC-Challenge", "allenai/ai2_arc", "ai2_arc", "TIGER-Lab/MMLU-Pro", "mmlu_pro"}) {
    EXPECT_EQ(grader->Grade("The answer is (B) 12 cm.", "B", source).reason, "same choice")
        << source;
    EXPECT_EQ(grader->Grade("The answer is (C).", "B", source).reason, "another choice") << source;
  }
  EXPECT_NE(grader->Grade("The answer is (B) 12 cm.", "B", "arc_cx").reason, "same choice");
}

TEST(DapoGrader, ReadsTheLastAnswerLineOfTheLast300Characters) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("math_dapo", ""));
  EXPECT_TRUE(grader->Grade("Answer: 3\nno\nAnswer: $\\boxed{1,234}$", "1234").correct);
  EXPECT_FALSE(grader->Grade("Answer: 12" + std::string(400, ' ') + "that is it", "12").correct);
  EXPECT_EQ(grader->Grade("answer : x = 5 \\text{ cm}", "5").extracted, "5");
  EXPECT_FALSE(grader->Grade("no line", "5").correct);
}

TEST(ChoiceGrader, FindsTheLetter) {
  ASSERT_OK_AND_ASSIGN(auto grader, Grader::Make("choice", ""));
  for (const char* response :
       {"\\boxed{B}", "\\boxed{\\text{B}}", "\\boxed{(B) 12 cm}", "The answer is (B).", "Answer: B",
        "**Answer:** B", "A is wrong, C too, so B", "<think>\\boxed{A}</think>\\boxed{b}"}) {
    EXPECT_TRUE(grader->Grade(response, "B").correct) << response;
    EXPECT_FALSE(grader->Grade(response, "A").correct) << response;
  }
  EXPECT_FALSE(grader->Grade("\\boxed{12}", "B").correct);
  EXPECT_FALSE(grader->Grade("", "B").correct);
  EXPECT_FALSE(grader->Grade("B", "").correct);
  EXPECT_TRUE(grader->Grade("\\boxed{4}", "4").correct);
  // The answer is the text after the last </think>.
  EXPECT_TRUE(grader->Grade("x</think>The answer is (A).</think>\nB", "B").correct);
}

// The published choice questions of the paper's evaluation sets: the right letter is accepted in
// the framings that models use, and every other letter is rejected.
TEST(ChoiceGrader, ReadsThePublishedQuestionsOfArc) {
  const std::string path = testing::SharedData("valid_without_mmlu_pro.parquet");
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  ASSERT_OK_AND_ASSIGN(const auto grader, Grader::Make("auto", ""));
  ASSERT_OK_AND_ASSIGN(const auto reader, ParquetReader::Open(path));
  int num_rows = 0;
  EXPECT_OK(reader->ForEachRow(
      {"data_source", "reward_model.ground_truth"},
      [&](const nlohmann::ordered_json& row, int64_t number) {
        const std::string source = row["data_source"];
        if (source != "arc_c") return absl::OkStatus();
        ++num_rows;
        const std::string answer = row["reward_model"]["ground_truth"];
        const std::string other(1, answer == "1" || answer == "A"
                                       ? static_cast<char>(answer[0] + 1)
                                       : static_cast<char>(answer[0] - 1));
        for (const auto& [before, after] : std::vector<std::pair<std::string, std::string>>{
                 {"A and B differ, so\n\\boxed{", "}"},
                 {"\\boxed{\\text{", "}}"},
                 {"\\boxed{", ") 12 cm}"},
                 {"C? No.\nThe answer is (", ")."},
                 {"The answer is **", "**."},
                 {"Answer: ", ""},
                 {"<think>D</think>\n**Answer**: ", "."},
                 {"the final answer is: ", ""}}) {
          EXPECT_TRUE(grader->Grade(before + answer + after, answer, source).correct)
              << "row " << number << ": " << before + answer + after;
          EXPECT_FALSE(grader->Grade(before + other + after, answer, source).correct)
              << "row " << number << ": " << before + other + after;
        }
        return absl::OkStatus();
      }));
  EXPECT_EQ(num_rows, 1172);
}

}  // namespace
}  // namespace taopd::grading
