// Tests of the programs `taopd-trainer tokenize`, `render` and `grade`, which answer every line,
// including bad ones.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/files.h"
#include "tests/support/process.h"

namespace taopd::testing {
namespace {

using nlohmann::json;

class TextCommands : public ::testing::Test {
 protected:
  // Returns the answers to the lines and sets code_ to the exit code.
  std::vector<json> Answers(const std::string& arguments, const std::string& lines) {
    WriteFile(dir_.File("in"), lines);
    const std::string command = BinaryPath("taopd-trainer") + " " + arguments + " < " +
                                dir_.File("in") + " > " + dir_.File("out") + " 2> " +
                                dir_.File("err");
    std::string ignored;
    code_ = RunProgram({"/bin/sh", "-c", command}, dir_.File("log"), &ignored);
    std::vector<json> answers;
    std::istringstream out(ReadFile(dir_.File("out")));
    for (std::string line; std::getline(out, line);) answers.push_back(json::parse(line));
    return answers;
  }
  // Expects the first answers to be these errors.
  static void ExpectErrors(const std::vector<json>& answers,
                           const std::vector<std::string>& messages) {
    for (size_t i = 0; i < messages.size(); ++i)
      EXPECT_NE(answers[i].value("error", "").find(messages[i]), std::string::npos) << answers[i];
  }
  std::string ToyDir() {
    const std::string file = "tokenizer.json";
    WriteFile(dir_.File(file), ReadFile(SourcePath("tests/common/text/data/qwen2_toy/" + file)));
    WriteFile(
        dir_.File("tokenizer_config.json"),
        R"({"chat_template": "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ eos_token }}",
                           "eos_token": "<|endoftext|>"})");
    return dir_.path();
  }
  TempDir dir_;
  int code_ = -1;
};

TEST_F(TextCommands, Tokenize) {
  const auto answers = Answers("tokenize --tokenizer " + ToyDir(),
                               "{\"text\": \"lower low\"}\n\n{\"ids\": [259, 270]}\n"
                               "{\"ids\": [259, 270], \"skip_special_tokens\": true}\n");
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(answers[0]["text"], "lower low");
  EXPECT_EQ(answers[0]["ids"].size(), answers[0]["tokens"].size());
  EXPECT_EQ(answers[1],
            json::parse("{\"ids\": [259, 270], \"tokens\": [\"\u0120low\", \"<|endoftext|>\"], "
                        "\"text\": \" low<|endoftext|>\"}"));
  EXPECT_EQ(answers[2]["text"], " low");
}

TEST_F(TextCommands, BadLinesAreAnsweredAndTheNextOnesToo) {
  const auto answers =
      Answers("tokenize --tokenizer " + ToyDir(),
              "{\n[1]\n{\"ids\": [271]}\n{\"ids\": [-1]}\n{\"text\": 5}\n{}\n{\"txt\": \"a\"}\n"
              "{\"text\": \"low\"}\n");
  ASSERT_EQ(answers.size(), 8u);
  EXPECT_EQ(code_, 65);
  ExpectErrors(answers, {"not JSON", "not a JSON object", "271", "-1", "text is not a string",
                         "either text or ids", "unknown key \"txt\""});
  EXPECT_EQ(answers[7]["text"], "low");
  EXPECT_TRUE(Answers("tokenize --tokenizer " + dir_.File("nowhere"), "").empty());
  EXPECT_EQ(code_, 65);
}

TEST_F(TextCommands, GradeCarriesTheOtherKeys) {
  const auto answers = Answers(
      "grade",
      "{\"id\": 7, \"response\": \"so \\\\boxed{4}\", \"answer\": \"4\", \"kind\": {\"a\": [1]}}\n"
      "{\"response\": \"The answer is (B).\", \"answer\": \"B\", \"grader\": \"auto\", "
      "\"data_source\": \"arc_c\"}\n");
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(answers[0]["id"], 7);
  EXPECT_EQ(answers[0]["kind"], json::parse("{\"a\": [1]}"));
  EXPECT_EQ(answers[0]["correct"], true);
  EXPECT_EQ(answers[0].size(), 5u);
  EXPECT_EQ(answers[1], json({{"correct", true}, {"extracted", "B"}, {"reason", "same choice"}}));
}

TEST_F(TextCommands, GradeAnswersBadRowsWithTheirKeys) {
  const auto answers =
      Answers("grade",
              "{\"id\": 1, \"response\": \"4\", \"anwser\": \"4\"}\n"
              "{\"id\": 2, \"response\": \"4\", \"answer\": 4}\n"
              "{\"id\": 3, \"response\": \"4\", \"answer\": \"4\", \"grader\": \"x\"}\n"
              "{\"id\": 4, \"response\": \"4\", \"answer\": \"4\", \"correct\": true}\n"
              "{\"id\": 5, \"error\": \"mine\"}\n[]\n");
  ASSERT_EQ(answers.size(), 6u);
  EXPECT_EQ(code_, 65);
  ExpectErrors(answers, {"answer is missing", "answer is not text", "grader \"x\" is not one of",
                         "key \"correct\"", "key \"error\"", "not a JSON object"});
  for (int i = 0; i < 6; ++i) EXPECT_EQ(answers[i].value("id", 0), i < 5 ? i + 1 : 0);
}

TEST_F(TextCommands, Render) {
  const auto answers =
      Answers("render --tokenizer " + ToyDir(),
              "{\"messages\": [{\"role\": \"user\", \"content\": \"low\"}]}\n"
              "{\"template\": \"{{ x|upper }}\", \"context\": {\"x\": \"a\"}}\n"
              "{\"template\": \"{{ x\", \"context\": {}}\n{\"messages\": 1}\n{\"nothing\": 1}\n");
  ASSERT_EQ(answers.size(), 5u);
  EXPECT_EQ(answers[0]["text"], "[low]<|endoftext|>");
  EXPECT_EQ(answers[0]["ids"].back(), 270);
  EXPECT_EQ(answers[1], json({{"text", "A"}}));
  EXPECT_EQ(answers[2]["error"], "line 1, column 1: missing }}");
  EXPECT_EQ(answers[3]["error"], "messages is not an array");
  EXPECT_EQ(answers[4]["error"], "line has no messages");
  WriteFile(dir_.File("t.jinja"), "{% for i in range(n) %}\n{{ i }},\n{% endfor %}");
  const auto of_file =
      Answers("render --template " + dir_.File("t.jinja"), "{\"context\": {\"n\": 2}}\n");
  ASSERT_EQ(of_file.size(), 1u);
  EXPECT_EQ(of_file[0]["text"], "0,\n1,\n");
}

}  // namespace
}  // namespace taopd::testing
