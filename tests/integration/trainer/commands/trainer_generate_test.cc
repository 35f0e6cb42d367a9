// Tests of taopd-trainer generate: chats through pipes, with a model here and on a server.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerGenerateTest : public TrainerTest {
 protected:
  void SetUp() override {
    TrainerTest::SetUp();
    WriteTokenizer();
    WriteFile(dir_.File("tokenizer/chat_template.jinja"),
              "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ mark }}{% endfor %}a");
    model_ = WriteTextStudent();
  }
  // Runs generate with lines on its standard input. Standard error goes to a file of its own.
  int Generate(const std::vector<std::string>& flags, const std::string& lines,
               std::string* answers) {
    WriteFile(dir_.File("lines.txt"), lines);
    std::string command = Concat("exec ", BinaryPath("taopd-trainer"), " generate");
    for (const std::string& flag : flags) command += Concat(" '", flag, "'");
    command += Concat(" < ", dir_.File("lines.txt"), " 2> ", dir_.File("errors.txt"));
    return RunProgram({"/bin/sh", "-c", command}, dir_.File("answers.txt"), answers);
  }
  std::vector<std::string> Local(const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--model", model_, "--chat"};
    const std::vector<std::string> sampling = Sampling(0);
    flags.insert(flags.end(), sampling.begin(), sampling.end());
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }
  std::vector<std::string> Sampling(int turn) const {
    return {"--max-new-tokens", "8", "--temperature", temperature_, "--seed", Concat(7 + turn)};
  }
  // The answer to a prompt of this turn, which the test has rendered itself.
  std::string Continue(const std::string& prompt, int turn = 0) {
    std::string text;
    std::vector<std::string> flags = {"--model", model_, "--prompt", prompt};
    const std::vector<std::string> sampling = Sampling(turn);
    flags.insert(flags.end(), sampling.begin(), sampling.end());
    EXPECT_EQ(Generate(flags, "", &text), 0) << ReadFile(dir_.File("errors.txt"));
    return text.substr(0, text.size() - 1);
  }
  std::string model_;
  std::string temperature_ = "0";
};

TEST_F(TrainerGenerateTest, EachAnswerKnowsTheConversation) {
  temperature_ = "1";  // the most probable answer of random weights may be empty
  std::string answers;
  ASSERT_EQ(Generate(Local({"--system", "be"}), "one\n\ntwo\n/quit\nthree\n", &answers), 0)
      << ReadFile(dir_.File("errors.txt"));
  EXPECT_THAT(ReadFile(dir_.File("errors.txt")), HasSubstr("the answer is cut"));
  const std::string first = Continue("sbeuonea");
  const std::string second = Continue(Concat("sbeuonea", first, "utwoa"), 1);
  EXPECT_EQ(answers, Concat(first, "\n", second, "\n"));
  EXPECT_NE(first, second);

  // The end of the input ends the conversation, and --prompt is its only question.
  ASSERT_EQ(Generate(Local({"--system", "be"}), "one", &answers), 0);
  EXPECT_EQ(answers, first + "\n");
  ASSERT_EQ(Generate(Local({"--system", "be", "--prompt", "one"}), "never read\n", &answers), 0);
  EXPECT_EQ(answers, first + "\n");
  ASSERT_EQ(Generate(Local({"--chat-template-kwargs", R"({"mark": "-"})"}), "one\n", &answers), 0);
  EXPECT_EQ(answers, Continue("uone-a") + "\n");
}

// The server has the same model, and answers the same.
TEST_F(TrainerGenerateTest, AServerAnswersLikeTheModelHere) {
  const TeacherProcess server(dir_, model_);
  const std::string url = Concat("http://127.0.0.1:", server.http_port());
  std::string here, there;
  const std::string lines = "one\ntwo\n";
  ASSERT_EQ(Generate(Local({"--system", "be"}), lines, &here), 0);
  const std::vector<std::string> remote = {"--endpoint",       url, "--temperature", "0",
                                           "--max-new-tokens", "8"};
  std::vector<std::string> chat = remote;
  chat.insert(chat.end(), {"--chat", "--system", "be"});
  ASSERT_EQ(Generate(chat, lines, &there), 0) << ReadFile(dir_.File("errors.txt"));
  EXPECT_EQ(there, here);
  EXPECT_THAT(ReadFile(dir_.File("errors.txt")), HasSubstr("the answer is cut"));

  std::vector<std::string> text = remote;
  text.insert(text.end(), {"--prompt", "sbeuonea"});
  ASSERT_EQ(Generate(text, "", &there), 0) << ReadFile(dir_.File("errors.txt"));
  EXPECT_EQ(there, here.substr(0, there.size()));
  EXPECT_EQ(there, Continue("sbeuonea") + "\n");
}

TEST_F(TrainerGenerateTest, RefusesWhatDoesNotBelongTogether) {
  const PortInUse closed;
  const std::string url = Concat("http://127.0.0.1:", closed.port());
  std::string output;
  const struct {
    std::vector<std::string> flags;
    int code;
    const char* words;
  } cases[] = {
      {{"--prompt", "a"}, 64, "needs --model or --endpoint"},
      {{"--model", model_, "--system", "s"}, 64, "--system is for --chat"},
      {{"--model", model_, "--chat", "--prompt-ids", "1"}, 64, "--chat takes text"},
      {{"--model", teacher_model_, "--chat"}, 64, "has no chat template"},
      {{"--model", model_, "--chat", "--chat-template-kwargs", "[]"}, 64, "not a JSON object"},
      {{"--endpoint", "ftp://x", "--prompt", "a"}, 64, "is not a URL"},
      {{"--endpoint", url, "--dtype", "float32", "--prompt", "a"}, 64, "--endpoint"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Generate(c.flags, "a\n", &output), c.code) << c.words;
    EXPECT_THAT(ReadFile(dir_.File("errors.txt")), HasSubstr(c.words));
  }
}

}  // namespace
}  // namespace taopd::testing
