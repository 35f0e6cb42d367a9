// Tests of taopd-trainer generate: chats through pipes, with a model here and on a server.

#include "tests/integration/trainer/trainer_fixture.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {
namespace {

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
  int Generate(const Strings& flags, const std::string& lines) {
    WriteFile(dir_.File("lines.txt"), lines);
    std::string command = Concat("exec ", BinaryPath("taopd-trainer"), " generate");
    for (const std::string& flag : flags) command += Concat(" '", flag, "'");
    command += Concat(" < ", dir_.File("lines.txt"), " 2> ", dir_.File("errors.txt"));
    return RunCommand({"/bin/sh", "-c", command});
  }
  std::string Errors() { return ReadFile(dir_.File("errors.txt")); }
  // Returns what it answers.
  std::string Answers(const Strings& flags, const std::string& lines) {
    EXPECT_EQ(Generate(flags, lines), 0) << Errors();
    return output_;
  }
  Strings Local(const Strings& more) {
    return Joined(Joined({"--model", model_, "--chat"}, Sampling(0)), more);
  }
  Strings Sampling(int turn) const {
    return {"--max-new-tokens", "8", "--temperature", temperature_, "--seed", Concat(7 + turn)};
  }
  // The answer to a prompt of this turn, which the test has rendered itself.
  std::string Continue(const std::string& prompt, int turn = 0) {
    const std::string text =
        Answers(Joined({"--model", model_, "--prompt", prompt}, Sampling(turn)), "");
    return text.substr(0, text.size() - 1);
  }
  std::string model_;
  std::string temperature_ = "0";
};

TEST_F(TrainerGenerateTest, EachAnswerKnowsTheConversation) {
  temperature_ = "1";  // the most probable answer of random weights may be empty
  const std::string answers = Answers(Local({"--system", "be"}), "one\n\ntwo\n/quit\nthree\n");
  EXPECT_THAT(Errors(), HasSubstr("the answer is cut"));
  const std::string first = Continue("sbeuonea");
  const std::string second = Continue(Concat("sbeuonea", first, "utwoa"), 1);
  EXPECT_EQ(answers, Concat(first, "\n", second, "\n"));
  EXPECT_NE(first, second);

  // The end of the input ends the conversation, and --prompt is its only question.
  EXPECT_EQ(Answers(Local({"--system", "be"}), "one"), first + "\n");
  EXPECT_EQ(Answers(Local({"--system", "be", "--prompt", "one"}), "never read\n"), first + "\n");
  EXPECT_EQ(Answers(Local({"--chat-template-kwargs", R"({"mark": "-"})"}), "one\n"),
            Continue("uone-a") + "\n");
}

// The server has the same model, and answers the same.
TEST_F(TrainerGenerateTest, AServerAnswersLikeTheModelHere) {
  const ServingTeacher server(model_);
  const std::string url = Concat("http://127.0.0.1:", server.http_port());
  const std::string lines = "one\ntwo\n", here = Answers(Local({"--system", "be"}), lines);
  const Strings remote = {"--endpoint", url, "--temperature", "0", "--max-new-tokens", "8"};
  EXPECT_EQ(Answers(Joined(remote, {"--chat", "--system", "be"}), lines), here);
  EXPECT_THAT(Errors(), HasSubstr("the answer is cut"));
  const std::string there = Answers(Joined(remote, {"--prompt", "sbeuonea"}), "");
  EXPECT_EQ(there, here.substr(0, there.size()));
  EXPECT_EQ(there, Continue("sbeuonea") + "\n");
}

TEST_F(TrainerGenerateTest, RefusesWhatDoesNotBelongTogether) {
  const RawListener closed;
  const std::string url = Concat("http://127.0.0.1:", closed.port());
  const struct {
    Strings flags;
    int code;
    const char* words;
  } cases[] = {
      {{"--prompt", "a"}, 64, "needs --model or --endpoint"},
      {{"--model", model_, "--system", "s"}, 64, "--system is for --chat"},
      {{"--model", model_, "--chat", "--prompt-ids", "1"}, 64, "--chat takes text"},
      {{"--model", stories_, "--chat"}, 64, "has no chat template"},
      {{"--model", model_, "--chat", "--chat-template-kwargs", "[]"}, 64, "not a JSON object"},
      {{"--endpoint", "ftp://x", "--prompt", "a"}, 64, "is not a URL"},
      {{"--endpoint", url, "--dtype", "float32", "--prompt", "a"}, 64, "--endpoint"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(Generate(c.flags, "a\n"), c.code) << c.words;
    EXPECT_THAT(Errors(), HasSubstr(c.words));
  }
}

}  // namespace
}  // namespace taopd::testing
