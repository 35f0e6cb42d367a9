// --overwrite replaces a run only when nothing can refuse the new one any more. A start that fails
// leaves every byte of the old run unchanged.

#include "tests/integration/trainer/trainer_fixture.h"
#include "tests/support/raw_sockets.h"

namespace taopd::testing {
namespace {

class OverwriteTest : public TrainerTest {
 protected:
  // Adds the files of an evaluation and of a user to a run.
  void AddFiles(const std::string& run) {
    std::filesystem::create_directory(run + "/evaluation");
    WriteFile(run + "/evaluation/student_after.json", "{}");
    WriteFile(run + "/summary.json", "{}");
    WriteFile(run + "/notes.txt", "mine");
  }
  // Expects the command with --overwrite to fail with `code` and `message` and to change nothing.
  void ExpectKept(const Strings& arguments, const std::string& run, int code,
                  const std::string& message) {
    const auto before = FilesOf(run);
    ASSERT_TRUE(before.contains("metrics.jsonl"));
    ExpectFails(Joined(arguments, {"--overwrite"}), code, message);
    EXPECT_EQ(FilesOf(run), before) << message;
    EXPECT_FALSE(std::filesystem::exists(run + "/.replaced"));
  }
  void ExpectReplaced(const Strings& arguments, const std::string& run) {
    EXPECT_TRUE(Runs(Joined(arguments, {"--overwrite"})));
    const auto files = FilesOf(run);
    EXPECT_FALSE(files.contains("evaluation/student_after.json"));
    EXPECT_FALSE(files.contains("summary.json"));
    EXPECT_TRUE(files.contains("notes.txt"));
    EXPECT_TRUE(files.contains("model/model.safetensors"));
  }
};

TEST_F(OverwriteTest, Distillation) {
  const std::string run = dir_.File("run");
  ASSERT_TRUE(Trains());
  AddFiles(run);

  const std::string broken = dir_.File("broken");
  std::filesystem::copy(dir_.File("student/model"), broken);
  WriteFile(broken + "/model.safetensors", "x");
  const RawListener port;
  ExpectKept(TrainArguments({kNobody, "teacher.connect_timeout_s=0.2"}), run, 69, "teacher");
  const std::vector<std::tuple<Strings, int, std::string>> cases = {
      {{"optimizer.lr=-1"}, 64, "optimizer.lr = -1"},
      {{"data.train=[/nope.jsonl]"}, 65, "/nope.jsonl"},
      {{"data.val=[/nope.jsonl]"}, 65, "/nope.jsonl"},
      {{"student.model=/nope"}, 65, "/nope"},
      {{Concat("student.model=", broken)}, 65, "broken"},
      {{"student.tokenizer=/nope"}, 65, "/nope"},
      {{"teacher.top_k=4000"}, 64, "teacher.top_k 4000 exceeds the teacher's limit"},
      {{"data.max_response_length=120"}, 64, "max_position_embeddings"},
      {{Concat("trainer.http_port=", port.port())}, 64, Concat(port.port())}};
  for (const auto& [settings, code, message] : cases)
    ExpectKept(TrainArguments(settings), run, code, message);
  ExpectReplaced(TrainArguments(), run);
}

TEST_F(OverwriteTest, SupervisedTraining) {
  const std::string run = dir_.File("student");
  AddFiles(run);
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"optimizer.lr=-1", 64, "optimizer.lr"},
      {"data.train=[/nope.jsonl]", 65, "/nope.jsonl"},
      {"data.val=[/nope.jsonl]", 65, "/nope.jsonl"},
      {"model.config=/nope.json", 65, "/nope.json"},
      {"model.init=/nope", 65, "/nope"},
      {"model.tokenizer=/nope", 65, "/nope"},
      {"data.max_length=4096", 64, "max_position_embeddings"}};
  for (const auto& [setting, code, message] : cases)
    ExpectKept(SftArguments({setting}), run, code, message);
  ExpectReplaced(SftArguments({"trainer.total_steps=1"}), run);
}

TEST_F(OverwriteTest, Evaluation) {
  WriteTokenizer();
  const std::string student = WriteTextStudent(), results = dir_.File("results");
  WriteFile(dir_.File("text.jsonl"), "{\"prompt\": \"What is 1 + 2?\", \"answer\": \"3\"}\n");
  WriteFile(dir_.File("chat.jsonl"),
            "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 2?\"}], \"answer\": \"3\"}\n");
  const auto evaluate = [&](const Strings& what) {
    return Run(With(
        Joined({"eval"}, what),
        {"eval.n=1", "eval.max_response_length=8", "eval.grader=exact", "trainer.num_threads=1"},
        {"--output", results + "/results.json", "--overwrite"}));
  };
  const std::string text = dir_.File("text.jsonl");
  ASSERT_EQ(evaluate({"--model", student, "--data", text}), 0) << output_;
  const auto before = FilesOf(results);
  ASSERT_TRUE(before.contains("results.json"));
  ASSERT_TRUE(before.contains("results.responses.jsonl"));

  // The teacher has no chats.
  const std::string chats = Concat("http://127.0.0.1:", teacher().http_port(), "/v1");
  const std::vector<Strings> failures = {
      {"--model", student, "--data", "/nope.jsonl"},
      {"--model", "/nope", "--data", text},
      {"--model", student, "--data", text, "--set", "eval.temperature=-1"},
      {"--endpoint", "http://127.0.0.1:1/v1", "--data", text, "--max-retries", "0"},
      {"--endpoint", chats, "--data", dir_.File("chat.jsonl"), "--max-retries", "0"}};
  for (const auto& what : failures) {
    EXPECT_NE(evaluate(what), 0) << what[1];
    EXPECT_EQ(FilesOf(results), before) << what[1] << output_;
  }
}

// run.dir names, by mistake, a model directory that no run has made.
TEST_F(OverwriteTest, AModelIsNoRun) {
  const std::string mine = dir_.File("mine");
  std::filesystem::create_directory(mine);
  std::filesystem::copy(dir_.File("student/model"), mine + "/model");
  const auto before = FilesOf(mine);
  for (const char* flag : {"--overwrite", "--resume"}) {
    ExpectTrainFails({kNobody, RunDir("mine")}, 64, "which no run has made", {flag});
    EXPECT_EQ(FilesOf(mine), before);
  }
}

}  // namespace
}  // namespace taopd::testing
