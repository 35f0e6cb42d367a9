#include "trainer/eval/journal.h"

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;
constexpr auto kRefused = kFailedPrecondition;

const Json kEvaluation = {{"model", "m"}, {"eval.n", "8"}};

TEST(EvalJournal, KeepsWhatWasAdded) {
  TempDir dir;
  const std::string path = dir.File("deep/er/r.jsonl");
  {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, false));
    EXPECT_TRUE(journal.rows().empty());
    ASSERT_OK(journal.Add({{"problem", 3}, {"sample", 1}, {"response", "a\nb"}}));
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}, {"response", "c"}}));
  }
  ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, false));
  ASSERT_EQ(journal.rows().size(), 2u);
  EXPECT_EQ(journal.rows().at({3, 1}).at("response"), "a\nb");
}

TEST(EvalJournal, ANewEvaluationReplacesTheOldOneWithItsFirstResponse) {
  TempDir dir;
  const std::string path = dir.File("r.jsonl"), old = "hello\n";
  WriteFile(path, old);
  {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, true));
    EXPECT_TRUE(journal.rows().empty());
  }
  EXPECT_EQ(ReadFile(path), old);
  ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, true));
  ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
  EXPECT_EQ(ReadFile(path),
            "{\"evaluation\":{\"model\":\"m\",\"eval.n\":\"8\"}}\n"
            "{\"problem\":0,\"sample\":0}\n");
  // A journal without a response does not block another evaluation.
  const std::string unused = dir.File("unused.jsonl");
  ASSERT_OK(EvalJournal::Open(unused, kEvaluation, false));
  EXPECT_OK(EvalJournal::Open(unused, {{"model", "other"}}, false));
}

TEST(EvalJournal, AFileThatCannotBeWrittenIsSaidAtOnce) {
  TempDir dir;
  std::filesystem::create_directory(dir.File("r.jsonl"));
  for (const bool overwrite : {true, false})
    EXPECT_FALSE(EvalJournal::Open(dir.File("r.jsonl"), kEvaluation, overwrite).ok());
}

TEST(EvalJournal, HalfALineIsCutAtEveryPlace) {
  TempDir dir;
  const std::string path = dir.File("r.jsonl");
  const std::string head =
      "{\"evaluation\":{\"model\":\"m\",\"eval.n\":\"8\"}}\n{\"problem\":0,\"sample\":0}\n";
  const std::string last = "{\"problem\":1,\"sample\":0}\n";
  for (size_t size = 0; size <= last.size(); ++size) {
    WriteFile(path, head + last.substr(0, size));
    {
      ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, false));
      EXPECT_EQ(journal.rows().size(), size == last.size() ? 2u : 1u) << size;
      ASSERT_OK(journal.Add({{"problem", 7}, {"sample", 0}}));
    }
    ASSERT_OK_AND_ASSIGN(EvalJournal again, EvalJournal::Open(path, kEvaluation, false));
    EXPECT_EQ(again.rows().count({7, 0}), 1u);
  }
}

TEST(EvalJournal, AFirstLineThatWasCutIsReplaced) {
  TempDir dir;
  const std::string path = dir.File("r.jsonl");
  const std::string head = "{\"evaluation\":{\"model\":\"m\",\"eval.n\":\"8\"}}\n";
  for (size_t size = 0; size < head.size(); ++size) {
    WriteFile(path, head.substr(0, size));
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, false));
    EXPECT_TRUE(journal.rows().empty());
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
    EXPECT_EQ(ReadFile(path), head + "{\"problem\":0,\"sample\":0}\n") << size;
  }
}

TEST(EvalJournal, OtherEvaluationsAndOtherFilesAreLeftAlone) {
  TempDir dir;
  const std::string path = dir.File("r.jsonl");
  {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path, kEvaluation, false));
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
  }
  EXPECT_ERROR(EvalJournal::Open(path, {{"model", "m"}, {"eval.n", "4"}}, false), kRefused,
               "eval.n is \"4\", there \"8\"");
  EXPECT_ERROR(EvalJournal::Open(path, {{"model", "m"}}, false), kRefused,
               "eval.n is recorded there only");
  EXPECT_ERROR(EvalJournal::Open(path, {{"model", "m"}, {"eval.n", "8"}, {"x", 1}}, false),
               kRefused, "x is not recorded");
  // If the model was trained again, the message says so instead of showing the record.
  for (const auto& [key, says] :
       {std::pair("weights", "the model's weights have changed since"),
        std::pair("data", "data.val names other files, or their rows have changed")}) {
    const auto identity = [key = key](int64_t number) -> nlohmann::ordered_json {
      return {{"model", "m"}, {key, {{{"file", "model.safetensors"}, {"unix_ns", number}}}}};
    };
    const std::string trained = dir.File(key);
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(trained, identity(1), false));
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
    const absl::Status refused = EvalJournal::Open(trained, identity(2), false).status();
    EXPECT_ERROR(refused, kRefused, says);
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("{")));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--overwrite"));
  }
  for (const std::string text :
       {"hello", "{\"step\":1}\n{\"step\":2", "[]\n", "{\"evaluation\":{}"}) {
    WriteFile(path, text);
    EXPECT_FALSE(EvalJournal::Open(path, kEvaluation, false).ok()) << text;
    EXPECT_EQ(ReadFile(path), text);
  }
  WriteFile(path,
            "{\"evaluation\":{\"model\":\"m\",\"eval.n\":\"8\"}}\n{\"problem\":-1,\"sample\":0}\n");
  EXPECT_ERROR(EvalJournal::Open(path, kEvaluation, false), kDataLoss, "r.jsonl:2");
}

}  // namespace
}  // namespace taopd::testing
