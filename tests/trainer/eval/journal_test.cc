#include "trainer/eval/journal.h"

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;
constexpr auto kRefused = kFailedPrecondition;

const Json kEvaluation = {{"model", "m"}, {"eval.n", "8"}};
// The first line of its journal.
constexpr char kHead[] = "{\"evaluation\":{\"model\":\"m\",\"eval.n\":\"8\"}}\n";

class EvalJournalTest : public ::testing::Test {
 protected:
  const TempDir dir_;
  const std::string path_ = dir_.File("r.jsonl");
};

TEST_F(EvalJournalTest, KeepsWhatWasAdded) {
  const std::string path = dir_.File("deep/er/r.jsonl");
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

TEST_F(EvalJournalTest, ANewEvaluationReplacesTheOldOneWithItsFirstResponse) {
  const std::string old = "hello\n";
  WriteFile(path_, old);
  {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path_, kEvaluation, true));
    EXPECT_TRUE(journal.rows().empty());
  }
  EXPECT_EQ(ReadFile(path_), old);
  ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path_, kEvaluation, true));
  ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
  EXPECT_EQ(ReadFile(path_), Concat(kHead, "{\"problem\":0,\"sample\":0}\n"));
  // A journal without a response does not block another evaluation.
  const std::string unused = dir_.File("unused.jsonl");
  ASSERT_OK(EvalJournal::Open(unused, kEvaluation, false));
  EXPECT_OK(EvalJournal::Open(unused, {{"model", "other"}}, false));
}

TEST_F(EvalJournalTest, AFileThatCannotBeWrittenIsSaidAtOnce) {
  std::filesystem::create_directory(path_);
  for (const bool overwrite : {true, false})
    EXPECT_FALSE(EvalJournal::Open(path_, kEvaluation, overwrite).ok());
}

TEST_F(EvalJournalTest, HalfALineIsCutAtEveryPlace) {
  const std::string head = Concat(kHead, "{\"problem\":0,\"sample\":0}\n");
  const std::string last = "{\"problem\":1,\"sample\":0}\n";
  for (size_t size = 0; size <= last.size(); ++size) {
    WriteFile(path_, head + last.substr(0, size));
    {
      ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path_, kEvaluation, false));
      EXPECT_EQ(journal.rows().size(), size == last.size() ? 2u : 1u) << size;
      ASSERT_OK(journal.Add({{"problem", 7}, {"sample", 0}}));
    }
    ASSERT_OK_AND_ASSIGN(EvalJournal again, EvalJournal::Open(path_, kEvaluation, false));
    EXPECT_EQ(again.rows().count({7, 0}), 1u);
  }
}

TEST_F(EvalJournalTest, AFirstLineThatWasCutIsReplaced) {
  const std::string head = kHead;
  for (size_t size = 0; size < head.size(); ++size) {
    WriteFile(path_, head.substr(0, size));
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path_, kEvaluation, false));
    EXPECT_TRUE(journal.rows().empty());
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
    EXPECT_EQ(ReadFile(path_), head + "{\"problem\":0,\"sample\":0}\n") << size;
  }
}

TEST_F(EvalJournalTest, OtherEvaluationsAndOtherFilesAreLeftAlone) {
  {
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(path_, kEvaluation, false));
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
  }
  EXPECT_ERROR(EvalJournal::Open(path_, {{"model", "m"}, {"eval.n", "4"}}, false), kRefused,
               "eval.n is \"4\", there \"8\"");
  EXPECT_ERROR(EvalJournal::Open(path_, {{"model", "m"}}, false), kRefused,
               "eval.n is recorded there only");
  EXPECT_ERROR(EvalJournal::Open(path_, {{"model", "m"}, {"eval.n", "8"}, {"x", 1}}, false),
               kRefused, "x is not recorded");
  // If the model was trained again, the message says so instead of showing the record.
  for (const auto& [key, says] :
       {std::pair("weights", "the model's weights have changed since"),
        std::pair("data", "data.val names other files, or their rows have changed")}) {
    const auto identity = [key = key](int64_t number) -> nlohmann::ordered_json {
      return {{"model", "m"}, {key, {{{"file", "model.safetensors"}, {"unix_ns", number}}}}};
    };
    const std::string trained = dir_.File(key);
    ASSERT_OK_AND_ASSIGN(EvalJournal journal, EvalJournal::Open(trained, identity(1), false));
    ASSERT_OK(journal.Add({{"problem", 0}, {"sample", 0}}));
    const absl::Status refused = EvalJournal::Open(trained, identity(2), false).status();
    EXPECT_ERROR(refused, kRefused, says);
    EXPECT_THAT(std::string(refused.message()), Not(HasSubstr("{")));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--overwrite"));
  }
  for (const std::string text :
       {"hello", "{\"step\":1}\n{\"step\":2", "[]\n", "{\"evaluation\":{}"}) {
    WriteFile(path_, text);
    EXPECT_FALSE(EvalJournal::Open(path_, kEvaluation, false).ok()) << text;
    EXPECT_EQ(ReadFile(path_), text);
  }
  WriteFile(path_, Concat(kHead, "{\"problem\":-1,\"sample\":0}\n"));
  EXPECT_ERROR(EvalJournal::Open(path_, kEvaluation, false), kDataLoss, "r.jsonl:2");
}

}  // namespace
}  // namespace taopd::testing
