#include "trainer/run/resume/run_facts.h"

#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

std::vector<PromptRecord> Records() {
  std::vector<PromptRecord> records(2);
  records[0].prompt_ids = {1, 2};
  records[0].source = "math";
  records[1].prompt_ids = {3};
  records[1].source = "code";
  return records;
}

TEST(DataFingerprint, SourcesCountWhereTheyChooseTeachers) {
  auto relabeled = Records();
  relabeled[0].source = "code";
  EXPECT_EQ(DataFingerprint(Records()), DataFingerprint(relabeled));
  const DataUse routed = {.sources_choose_teachers = true};
  EXPECT_NE(DataFingerprint(Records(), routed), DataFingerprint(relabeled, routed));
}

TEST(DataFingerprint, RowsBelongToTheirFilesWhereFilesAreWeighted) {
  const DataUse before = {.shares = {{1, 0.5}, {1, 2.0}}};
  EXPECT_NE(DataFingerprint(Records(), before),
            DataFingerprint(Records(), {.shares = {{2, 0.5}, {0, 2.0}}}));
  EXPECT_EQ(DataFingerprint(Records(), before),
            DataFingerprint(Records(), {.shares = {{1, 0.5}, {1, 2.0}}}));
}

std::string FactOf(const RunFacts& facts, const std::string& name) {
  for (const RunFact& fact : facts) {
    if (fact.name == name) return fact.value;
  }
  return "none";
}

TEST(FactsOfTeacher, ACanaryIsComparedIfBothRunsHaveIt) {
  const auto facts = [](const char* canary) { return FactsOfTeacher({.canary = canary}); };
  EXPECT_TRUE(ChangesSince(facts(""), facts("1f")).empty());
  EXPECT_TRUE(ChangesSince(facts("1f"), facts("")).empty());
  EXPECT_EQ(ChangesSince(facts("1f"), facts("2f")).at(0).name, "teacher_canary");
  EXPECT_TRUE(ChangesSince(facts("math=1f"), facts("math=1f,code=3f")).empty());
  EXPECT_EQ(ChangesSince(facts("a=1,b=2"), facts("a=1,b=3")).at(0).name, "teacher_canary.b");
}

// A resumed run has the tokenizer of its checkpoint, but the tokenizer's origin counts.
TEST(FactsOfData, TheTokenizerIsThatOfTheStart) {
  const TempDir dir;
  const std::string toy = SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json");
  for (const char* name : {"start", "checkpoint"}) {
    std::filesystem::create_directory(dir.File(name));
    std::filesystem::copy_file(toy, dir.File(name) + "/tokenizer.json");
  }
  Student student;
  ASSERT_OK_AND_ASSIGN(student.tokenizer, Tokenizer::Load(dir.File("checkpoint")));
  student.tokenizer_dir = dir.File("checkpoint");
  const auto hash = [&](const std::string& start) {
    const auto facts = FactsOfData(Records(), {}, {}, student, start);
    EXPECT_OK(facts);
    return facts.ok() ? FactOf(*facts, "tokenizer_hash") : "";
  };
  const std::string own = student.tokenizer->hash();
  EXPECT_EQ(hash(dir.File("start")), own);
  EXPECT_EQ(hash(dir.File("gone")), own) << "it cannot be compared";
  auto changed = nlohmann::json::parse(ReadFile(toy));
  auto added = changed.at("added_tokens").back();
  added["content"] = "<|another|>";
  added["id"] = added["id"].get<int>() + 1;
  changed["added_tokens"].push_back(added);
  WriteFile(dir.File("start/tokenizer.json"), changed.dump());
  EXPECT_NE(hash(dir.File("start")), own);
}

TEST(FactsOfData, TheEvaluationsFilesCountByTheirBytes) {
  const TempDir dir;
  WriteFile(dir.File("a"), "1\n");
  WriteFile(dir.File("b"), "1\n");
  WriteFile(dir.File("c"), "2\n");
  const auto of = [&](const std::vector<std::string>& val) {
    const auto facts = FactsOfData(Records(), {}, val, Student(), "");
    EXPECT_OK(facts);
    return FactOf(*facts, "data_val_fingerprint");
  };
  EXPECT_EQ(of({}), "none");
  EXPECT_EQ(of({dir.File("a")}), of({dir.File("b")}));
  EXPECT_NE(of({dir.File("a")}), of({dir.File("c")}));
  EXPECT_NE(of({dir.File("a")}), of({dir.File("a"), dir.File("b")}));
  EXPECT_FALSE(FactsOfData(Records(), {}, {dir.File("no")}, Student(), "").ok());
}

}  // namespace
}  // namespace taopd::testing
