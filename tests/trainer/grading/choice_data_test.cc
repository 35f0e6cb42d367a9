// The published choice questions of the paper's evaluation sets: the right letter is accepted in
// the framings that models use, and every other letter is rejected.
#include <nlohmann/json.hpp>

#include "common/io/parquet.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/grading/grader.h"

namespace taopd::grading {
namespace {

TEST(ChoiceData, ArcChallenge) {
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
