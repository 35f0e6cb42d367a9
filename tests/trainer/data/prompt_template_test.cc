#include "trainer/data/prompt_template.h"

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/data/row_reader.h"

namespace taopd::testing {
namespace {

TEST(PromptTemplate, BuiltInOnesAndOwnTexts) {
  for (const PromptTemplate& built_in : BuiltInPromptTemplates()) {
    ASSERT_OK_AND_ASSIGN(const PromptTemplate found, MakePromptTemplate(built_in.name, ""));
    EXPECT_NE(FillTemplate(found, "WHAT").find("WHAT"), std::string::npos) << built_in.name;
    EXPECT_EQ(found.system, built_in.system);
    ASSERT_OK_AND_ASSIGN(const PromptTemplate other, MakePromptTemplate(built_in.name, "mine"));
    EXPECT_EQ(other.system, "mine");
  }
  ASSERT_OK_AND_ASSIGN(const PromptTemplate own, MakePromptTemplate("{question}?{question}!", ""));
  EXPECT_EQ(FillTemplate(own, "{question}"), "{question}?{question}!");  // not filled again
  ASSERT_OK_AND_ASSIGN(const PromptTemplate none, MakePromptTemplate("", ""));
  EXPECT_EQ(FillTemplate(none, "a"), "a");
  EXPECT_TRUE(none.name.empty());
}

TEST(PromptTemplate, UnknownNames) {
  EXPECT_ERROR(MakePromptTemplate("boxd", ""), kInvalidArgument, "did you mean \"boxed\"");
  EXPECT_ERROR(MakePromptTemplate("Solve this.", ""), kInvalidArgument, "lacks {question}");
}

// The system message of the published evaluation files is the template's.
TEST(PromptTemplate, ThePapersEvaluationPrompt) {
  const std::string path = SharedData("valid_math500.parquet");
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  ASSERT_OK_AND_ASSIGN(const PromptTemplate paper, MakePromptTemplate("ta_opd_eval", ""));
  ASSERT_OK(ReadRows(path, {"prompt"}, [&](const nlohmann::ordered_json& row, int64_t) {
    EXPECT_EQ(row["prompt"][0]["role"], "system");
    EXPECT_EQ(row["prompt"][0]["content"].get<std::string>(), paper.system);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace taopd::testing
