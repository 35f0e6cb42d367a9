// Tests of the teacher's prompts that LoadPrompts reads besides the student's.
#include "trainer/data/teacher_prompt.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"
#include "trainer/data/dataset_summary.h"
#include "trainer/data/prompt_dataset.h"

namespace taopd::testing {
namespace {

class TeacherPromptTest : public ::testing::Test {
 protected:
  TeacherPromptTest() {
    options_.vocab_size = 256;
    options_.add_special_tokens = false;
    options_.render = [](const nlohmann::ordered_json& messages) -> absl::StatusOr<std::string> {
      std::string text;
      for (const auto& message : messages)
        text += Concat("<", message["role"].get<std::string>(), ">",
                       message["content"].get<std::string>());
      return text + "<assistant>";
    };
  }
  absl::StatusOr<PromptDataset> Load(const std::string& content) {
    WriteFile(dir_.File("data.jsonl"), content);
    return LoadPrompts({dir_.File("data.jsonl")}, &tokenizer_, options_);
  }
  std::string TextOf(const std::string& row) {
    auto data = Load(row);
    EXPECT_OK(data.status());
    if (!data.ok()) return "";
    const TeacherPrompt& prompt = data->records[0].teacher_prompt;
    EXPECT_EQ(tokenizer_.Decode(prompt.ids, true), prompt.text);
    return prompt.text;
  }
  DatasetOptions options_;
  TempDir dir_;
  ByteTokenizer tokenizer_;
};

TEST_F(TeacherPromptTest, WithoutOptionsThereIsNone) {
  ASSERT_OK_AND_ASSIGN(const PromptDataset data, Load("{\"prompt\":\"ab\",\"hint\":\"c\"}\n"));
  EXPECT_TRUE(data.records[0].teacher_prompt.is_plain());
}

TEST_F(TeacherPromptTest, AKeyIsReadAsThePromptIs) {
  options_.teacher.key = "extra.teacher";
  EXPECT_EQ(TextOf("{\"prompt\":\"a\",\"extra\":{\"teacher\":\"hint\"}}\n"), "hint");
  EXPECT_EQ(TextOf("{\"prompt\":\"a\",\"extra\":{\"teacher\":[{\"role\":\"user\","
                   "\"content\":\"x\"}]}}\n"),
            "<user>x<assistant>");
  ASSERT_OK_AND_ASSIGN(const PromptDataset data,
                       Load("{\"prompt\":\"a\",\"extra\":{\"teacher_ids\":[7,8]}}\n"));
  EXPECT_EQ(data.records[0].teacher_prompt.ids, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(data.records[0].prompt_ids, (std::vector<int32_t>{'a'}));
}

TEST_F(TeacherPromptTest, ATemplateReadsTheRow) {
  options_.teacher.row_template = RowTemplate("{prompt}|{solution}|{answer}|{meta.n}");
  const std::string rest = ",\"solution\":\"s\",\"answer\":\"4\",\"meta\":{\"n\":2}}\n";
  EXPECT_EQ(TextOf("{\"prompt\":\"q\"" + rest), "q|s|4|2");
  // The template is inside of the student's message, after its system message.
  options_.prompt_template = {"custom", "system", "Q: {question}", ""};
  EXPECT_EQ(TextOf("{\"prompt\":\"q\"" + rest), "<system>system<user>Q: q|s|4|2<assistant>");
  EXPECT_EQ(TextOf("{\"prompt\":[{\"role\":\"assistant\",\"content\":\"hello\"},"
                   "{\"role\":\"user\",\"content\":\"q\"}]" +
                   rest),
            "<system>system<assistant>hello<user>Q: q|s|4|2<assistant>");
}

TEST_F(TeacherPromptTest, WhatIsMissingIsRefusedPlainOrSkipped) {
  const std::string rows =
      "{\"prompt\":\"a\",\"solution\":\"s\"}\n{\"prompt\":\"b\"}\n"
      "{\"prompt\":\"c\",\"solution\":\"\"}\n{\"prompt\":\"d\",\"solution\":null}\n";
  for (const bool by_key : {false, true}) {
    options_.teacher = TeacherPromptOptions();
    if (by_key) options_.teacher.key = "solution";
    if (!by_key) options_.teacher.row_template = RowTemplate("{prompt} {solution}");
    EXPECT_ERROR(Load(rows), kInvalidArgument,
                 "data.jsonl:2: has no \"solution\" for the teacher's prompt");
    if (by_key) continue;  // an empty prompt is an error of its own
    options_.teacher.missing = MissingTeacherPrompt::kPlain;
    ASSERT_OK_AND_ASSIGN(PromptDataset data, Load(rows));
    EXPECT_EQ(data.records.size(), 4u);
    EXPECT_EQ(data.num_teacher_prompt_missing(), 3);
    EXPECT_TRUE(data.records[1].teacher_prompt.is_plain());
    options_.teacher.missing = MissingTeacherPrompt::kSkip;
    ASSERT_OK_AND_ASSIGN(data, Load(rows));
    EXPECT_EQ(data.records.size(), 1u);
    EXPECT_EQ(data.num_teacher_prompt_missing(), 3);
    EXPECT_EQ(data.num_overlong(), 0);
    EXPECT_ERROR(Load("{\"prompt\":\"b\"}\n"), kInvalidArgument,
                 "1 rows without the teacher's prompt dropped");
  }
}

TEST_F(TeacherPromptTest, WhatCannotBeReadIsRefusedByName) {
  options_.teacher.row_template = RowTemplate("{prompt} {solution}");
  EXPECT_ERROR(Load("{\"prompt\":\"a\",\"solution\":[1]}\n"), kInvalidArgument,
               "\"solution\" is neither text nor a number");
  EXPECT_ERROR(Load("{\"prompt_ids\":[5],\"solution\":\"s\"}\n"), kInvalidArgument,
               "the teacher's prompt: \"prompt_ids\" are token");
  EXPECT_ERROR(Load("{\"prompt\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"solution\":"
                    "\"s\"}\n"),
               kInvalidArgument, "not a user's text, so data.teacher_prompt_template has no");
  options_.teacher = TeacherPromptOptions();
  options_.teacher.key = "hint";
  EXPECT_ERROR(Load("{\"prompt\":\"a\",\"hint\":7}\n"), kInvalidArgument,
               "the teacher's prompt: \"hint\" is neither text nor a list of messages");
}

TEST_F(TeacherPromptTest, OverlongPromptsAreRefusedOrDroppedButNeverCut) {
  options_.teacher.row_template = RowTemplate("{prompt}{solution}");
  options_.teacher.max_length = 4;
  options_.truncation = Truncation::kLeft;
  options_.max_prompt_length = 2;
  const std::string rows =
      "{\"prompt\":\"ab\",\"solution\":\"cd\"}\n{\"prompt\":\"ab\",\"solution\":\"cde\"}\n";
  EXPECT_ERROR(Load(rows), kInvalidArgument,
               "data.jsonl:2: the teacher's prompt has 5 tokens, more than "
               "max_teacher_prompt_length leaves room for, 4");
  options_.truncation = Truncation::kError;
  options_.filter_overlong_prompts = true;
  ASSERT_OK_AND_ASSIGN(const PromptDataset data, Load(rows));
  EXPECT_EQ(data.records.size(), 1u);
  EXPECT_EQ(data.num_overlong(), 1);
}

TEST_F(TeacherPromptTest, ARowThatLacksThePromptIsNotCountedAsOverlong) {
  options_.teacher.row_template = RowTemplate("{prompt}{solution}");
  options_.teacher.missing = MissingTeacherPrompt::kSkip;
  options_.truncation = Truncation::kLeft;
  options_.max_prompt_length = 2;
  ASSERT_OK_AND_ASSIGN(const PromptDataset data,
                       Load("{\"prompt\":\"abc\"}\n{\"prompt\":\"ab\",\"solution\":\"c\"}\n"));
  EXPECT_EQ(data.num_teacher_prompt_missing(), 1);
  EXPECT_EQ(data.num_overlong(), 0);
}

TEST_F(TeacherPromptTest, ASiblingLeavesItsMarkAndRoom) {
  options_.teacher.row_template = RowTemplate("{prompt} like {sibling}");
  options_.teacher.max_length = 30;
  options_.teacher.sibling_length = 10;
  ASSERT_OK_AND_ASSIGN(const PromptDataset data, Load("{\"prompt\":\"ab\"}\n"));
  const TeacherPrompt& prompt = data.records[0].teacher_prompt;
  EXPECT_TRUE(prompt.has_sibling);
  EXPECT_TRUE(prompt.ids.empty());
  EXPECT_EQ(prompt.text, "ab like {sibling}");
  // The mark itself takes no room.
  EXPECT_OK(Load("{\"prompt\":\"abcdefghijklmn\"}\n").status());
  EXPECT_ERROR(Load("{\"prompt\":\"abcdefghijklmno\"}\n"), kInvalidArgument,
               "has 21 tokens, more than max_teacher_prompt_length leaves room for, 20");
  options_.teacher.max_length = 60;
  EXPECT_ERROR(Load("{\"prompt\":\"see {sibling}\"}\n"), kInvalidArgument,
               "the row's own text contains {sibling}");
}

TEST_F(TeacherPromptTest, TheSameRowWithAnotherHintIsNoDuplicate) {
  options_.teacher.row_template = RowTemplate("{prompt}{solution}");
  ASSERT_OK_AND_ASSIGN(const PromptDataset data, Load("{\"prompt\":\"a\",\"solution\":\"s\"}\n"
                                                      "{\"prompt\":\"a\",\"solution\":\"t\"}\n"
                                                      "{\"prompt\":\"a\",\"solution\":\"s\"}\n"));
  EXPECT_EQ(data.num_duplicates(), 1);
}

TEST_F(TeacherPromptTest, TheSummaryShowsBothPrompts) {
  options_.teacher.row_template = RowTemplate("{prompt}{solution}");
  options_.teacher.missing = MissingTeacherPrompt::kPlain;
  ASSERT_OK_AND_ASSIGN(const PromptDataset data,
                       Load("{\"prompt\":\"a\",\"solution\":\"bcd\"}\n{\"prompt\":\"e\"}\n"));
  const auto summary = DatasetSummaryJson("data.train", data, SummaryOptions());
  EXPECT_EQ(summary["prompt_tokens"]["max"], 1);
  EXPECT_EQ(summary["teacher_prompt_tokens"]["max"], 4);
  EXPECT_EQ(summary["teacher_prompt_tokens"]["min"], 4);
  EXPECT_EQ(summary["samples"][0]["teacher_prompt"], "abcd");
  const std::string text = DatasetSummaryText(summary);
  EXPECT_NE(text.find("tokens of a teacher's prompt: min 4"), std::string::npos) << text;
  EXPECT_NE(text.find("1 prompts lack a part of the teacher's prompt"), std::string::npos) << text;
}

}  // namespace
}  // namespace taopd::testing
