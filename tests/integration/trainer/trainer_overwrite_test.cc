// --overwrite replaces a run only when nothing can refuse the new one any more. A start that fails
// leaves every byte of the old run unchanged.

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;
using Settings = std::vector<std::string>;

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
  void ExpectKept(const std::vector<std::string>& arguments, const std::string& run, int code,
                  const std::string& message) {
    const auto before = FilesOf(run);
    ASSERT_TRUE(before.contains("metrics.jsonl"));
    std::vector<std::string> overwrite = arguments;
    overwrite.push_back("--overwrite");
    std::string output;
    EXPECT_EQ(Run(overwrite, &output), code) << output;
    EXPECT_THAT(output, HasSubstr(message));
    EXPECT_EQ(FilesOf(run), before) << message;
    EXPECT_FALSE(std::filesystem::exists(run + "/.replaced"));
  }
  void ExpectReplaced(const std::vector<std::string>& arguments, const std::string& run) {
    std::vector<std::string> overwrite = arguments;
    overwrite.push_back("--overwrite");
    std::string output;
    EXPECT_EQ(Run(overwrite, &output), 0) << output;
    const auto files = FilesOf(run);
    EXPECT_FALSE(files.contains("evaluation/student_after.json"));
    EXPECT_FALSE(files.contains("summary.json"));
    EXPECT_TRUE(files.contains("notes.txt"));
    EXPECT_TRUE(files.contains("model/model.safetensors"));
  }
};

TEST_F(OverwriteTest, Distillation) {
  const std::string run = dir_.File("run"), dead = "grpc://127.0.0.1:1";
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output), 0) << output;
  AddFiles(run);

  const std::string broken = dir_.File("broken");
  std::filesystem::copy(dir_.File("student/model"), broken);
  WriteFile(broken + "/model.safetensors", "x");
  const PortInUse port;
  const auto arguments = [&](const std::string& endpoint, const Settings& settings) {
    Settings all = {"teacher.connect_timeout_s=0.2"};
    all.insert(all.end(), settings.begin(), settings.end());
    return TrainArguments(endpoint, all);
  };
  ExpectKept(arguments(dead, {}), run, 69, "teacher");
  const std::vector<std::tuple<Settings, int, std::string>> cases = {
      {{"optimizer.lr=-1"}, 64, "optimizer.lr"},
      {{"data.train=[/nope.jsonl]"}, 65, "/nope.jsonl"},
      {{"data.val=[/nope.jsonl]"}, 65, "/nope.jsonl"},
      {{"student.model=/nope"}, 65, "/nope"},
      {{Concat("student.model=", broken)}, 65, "broken"},
      {{"student.tokenizer=/nope"}, 65, "/nope"},
      {{"teacher.top_k=4000"}, 64, "teacher.top_k 4000"},
      {{"data.max_response_length=120"}, 64, "max_position_embeddings"},
      {{Concat("trainer.http_port=", port.port())}, 64, Concat(port.port())}};
  for (const auto& [settings, code, message] : cases)
    ExpectKept(arguments(teacher.endpoint(), settings), run, code, message);
  ExpectReplaced(arguments(teacher.endpoint(), {}), run);
}

TEST_F(OverwriteTest, SupervisedTraining) {
  const std::string run = dir_.File("student");
  AddFiles(run);
  const auto arguments = [&](const std::string& setting) {
    return std::vector<std::string>{"sft", "--config", dir_.File("sft.yaml"), "--set", setting};
  };
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"optimizer.lr=-1", 64, "optimizer.lr"},
      {"data.train=[/nope.jsonl]", 65, "/nope.jsonl"},
      {"data.val=[/nope.jsonl]", 65, "/nope.jsonl"},
      {"model.config=/nope.json", 65, "/nope.json"},
      {"model.init=/nope", 65, "/nope"},
      {"model.tokenizer=/nope", 65, "/nope"},
      {"data.max_length=4096", 64, "max_position_embeddings"}};
  for (const auto& [setting, code, message] : cases)
    ExpectKept(arguments(setting), run, code, message);
  ExpectReplaced(arguments("trainer.total_steps=1"), run);
}

TEST_F(OverwriteTest, Evaluation) {
  WriteTokenizer();
  const std::string student = WriteTextStudent(), results = dir_.File("results");
  WriteFile(dir_.File("text.jsonl"), "{\"prompt\": \"What is 1 + 2?\", \"answer\": \"3\"}\n");
  WriteFile(dir_.File("chat.jsonl"),
            "{\"prompt\": [{\"role\": \"user\", \"content\": \"1 + 2?\"}], \"answer\": \"3\"}\n");
  const auto evaluate = [&](std::vector<std::string> what, std::string* output) {
    what.insert(what.begin(), "eval");
    for (const char* setting :
         {"eval.n=1", "eval.max_response_length=8", "eval.grader=exact", "trainer.num_threads=1"}) {
      what.insert(what.end(), {"--set", setting});
    }
    what.insert(what.end(), {"--output", results + "/results.json", "--overwrite"});
    return Run(what, output);
  };
  const std::string text = dir_.File("text.jsonl");
  std::string output;
  ASSERT_EQ(evaluate({"--model", student, "--data", text}, &output), 0) << output;
  const auto before = FilesOf(results);
  ASSERT_TRUE(before.contains("results.json"));
  ASSERT_TRUE(before.contains("results.responses.jsonl"));

  TeacherProcess teacher(dir_, teacher_model_);  // it has no chats
  const std::string chats = Concat("http://127.0.0.1:", teacher.http_port(), "/v1");
  const std::vector<std::vector<std::string>> failures = {
      {"--model", student, "--data", "/nope.jsonl"},
      {"--model", "/nope", "--data", text},
      {"--model", student, "--data", text, "--set", "eval.temperature=-1"},
      {"--endpoint", "http://127.0.0.1:1/v1", "--data", text, "--max-retries", "0"},
      {"--endpoint", chats, "--data", dir_.File("chat.jsonl"), "--max-retries", "0"}};
  for (const auto& what : failures) {
    EXPECT_NE(evaluate(what, &output), 0) << what[1];
    EXPECT_EQ(FilesOf(results), before) << what[1] << output;
  }
}

// run.dir names, by mistake, a model directory that no run has made.
TEST_F(OverwriteTest, AModelIsNoRun) {
  const std::string mine = dir_.File("mine");
  std::filesystem::create_directory(mine);
  std::filesystem::copy(dir_.File("student/model"), mine + "/model");
  const auto before = FilesOf(mine);
  for (const char* flag : {"--overwrite", "--resume"}) {
    std::string output;
    EXPECT_EQ(Train("grpc://127.0.0.1:1", &output, {Concat("run.dir=", mine)}, {flag}), 64);
    EXPECT_THAT(output, HasSubstr("which no run has made"));
    EXPECT_EQ(FilesOf(mine), before);
  }
}

}  // namespace
}  // namespace taopd::testing
