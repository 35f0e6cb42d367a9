// Tests of bad input and of a teacher that goes away: the exit code is right, the message names the
// cause, and nothing is lost.

#include "common/base/memory.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

class TrainerFaultsTest : public TrainerTest {
 protected:
  // Expects `train` to fail before it needs a teacher.
  void ExpectFailure(const std::vector<std::string>& settings, int code,
                     const std::string& message) {
    std::vector<std::string> all = {"teacher.connect_timeout_s=0.2"};
    all.insert(all.end(), settings.begin(), settings.end());
    std::string output;
    EXPECT_EQ(Train("grpc://127.0.0.1:1", &output, all), code) << output;
    EXPECT_THAT(output, HasSubstr(message));
  }
};

TEST_F(TrainerFaultsTest, MisspeltKeysAndBadValues) {
  WriteTrainConfig("optimiser: {lr: 1}\n");
  ExpectFailure({}, 64, "unknown key \"optimiser\" (did you mean \"optimizer\"?)");
  WriteTrainConfig("");
  ExpectFailure({"optimizer.lrr=1"}, 64, "optimizer.lrr");
  ExpectFailure({"optimizer.lr=-1"}, 64, "optimizer.lr = -1");
  ExpectFailure({"trainer.mini_batch_size=3"}, 64, "must divide data.train_batch_size");
  ExpectFailure({"objective.name=ta_opdd"}, 64, "did you mean \"ta_opd\"");
  ExpectFailure({"teacher.endpoints=[http://x]"}, 64, "teacher.endpoints");
  std::string output;
  EXPECT_EQ(Run({"train", "--config", "/nowhere.yaml"}, &output), 64);
  EXPECT_THAT(output, HasSubstr("/nowhere.yaml"));
  const std::vector<std::pair<std::vector<std::string>, std::string>> unknown = {
      {{"trian"}, "unknown command \"trian\" (did you mean \"train\"?)"},
      {{"train", "--confg", "x.yaml"},
       "train: unknown option \"--confg\" (did you mean \"--config\"?)"},
      {{"eval", "x.yaml"}, "eval: unknown argument \"x.yaml\""},
      {{"--log-levl", "info", "objectives"},
       "unknown option \"--log-levl\" (did you mean \"--log-level\"?)"},
      {{"generate", "--model", "m", "--top-k", "-1"},
       "--top-k: must be a number that is at least 0, got -1\n"},
      {{"generate", "--model", "m", "--top-p", "0"},
       "--top-p: must be between 1e-09 and 1, got 0\n"},
      {{"bench-teacher", "--config", "c", "--duration", "x"},
       "--duration: must be a number above 0, got x\n"}};
  for (const auto& [arguments, message] : unknown) {
    EXPECT_EQ(Run(arguments, &output), 64);
    EXPECT_THAT(output, HasSubstr(message));
  }
  EXPECT_EQ(Run({"train"}, &output), 64);
  EXPECT_THAT(output, HasSubstr("--config is required"));
  EXPECT_EQ(Run({"--version"}, &output), 0);
  EXPECT_THAT(output, ::testing::ContainsRegex(
                          "^taopd-trainer [0-9]+\\.[0-9]+\\.[0-9]+\nCPU kernels: [a-z0-9_]+\n"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run")));
}

// There is no teacher, and the trainer does not wait for one.
TEST_F(TrainerFaultsTest, ALengthThatTheStudentLacksIsNamedBeforeATeacherIsAsked) {
  WriteTrainConfig("");
  ExpectFailure({"data.max_response_length=120", "teacher.connect_timeout_s=20"}, 64,
                "exceeds the student's max_position_embeddings 128");
}

TEST_F(TrainerFaultsTest, BadData) {
  WriteFile(dir_.File("empty.jsonl"), "");
  // All use one directory: a start that fails early leaves no run that the next one would have to
  // respect.
  ExpectFailure({Concat("data.train=[", dir_.File("empty.jsonl"), "]")}, 65, "empty.jsonl");
  ExpectFailure({"data.train=[/nowhere.jsonl]"}, 65, "/nowhere.jsonl");
  ExpectFailure({"data.max_prompt_length=2"}, 65, "more than max_prompt_length 2");
  WriteFile(dir_.File("broken.jsonl"), "{\"prompt_ids\":[1]}\n{\"prompt_ids\":[1\n");
  ExpectFailure({Concat("data.train=[", dir_.File("broken.jsonl"), "]")}, 65, "broken.jsonl:2");
}

TEST_F(TrainerFaultsTest, BadModels) {
  ExpectFailure({"student.model=/nowhere"}, 65, "/nowhere");
  const std::string copy = dir_.File("copy");
  std::filesystem::copy(dir_.File("student/model"), copy);
  const std::string weights = ReadFile(copy + "/model.safetensors");
  WriteFile(copy + "/model.safetensors", weights.substr(0, weights.size() / 2));
  ExpectFailure({Concat("student.model=", copy), Concat("run.dir=", dir_.File("r1"))}, 65,
                "model.safetensors");
  WriteFile(copy + "/config.json", "{\"architectures\":[\"GPT2LMHeadModel\"]}");
  ExpectFailure({Concat("student.model=", copy), Concat("run.dir=", dir_.File("r2"))}, 65,
                "GPT2LMHeadModel");
}

// A weight beyond float32 makes every loss infinite, so there is no update, and the run ends by
// itself.
TEST_F(TrainerFaultsTest, LossesThatStayNonFiniteEndTheRun) {
  TeacherProcess teacher(dir_, teacher_model_);
  WriteTrainConfig("objective: {terms: [{name: ta_opd, weight: 1.0e+300}]}\n");
  std::string output;
  EXPECT_EQ(Train(teacher.endpoint(), &output,
                  {"trainer.max_nonfinite_steps=2", "trainer.max_bad_batches=3"}),
            76)
      << output;
  EXPECT_EQ(FilesOf(dir_.File("run/bad_batches")).size(), 3u) << "of four that were skipped";
  EXPECT_THAT(output, HasSubstr("prompt=prompts.jsonl:"));
  EXPECT_THAT(output, HasSubstr("not finite in 2 steps in a row"));
  int64_t num_steps = 0;
  std::istringstream lines(ReadFile(dir_.File("run/metrics.jsonl")));
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    if (!row.contains("optim/skipped_updates")) continue;
    ++num_steps;
    EXPECT_EQ(row.at("optim/skipped_updates"), 2);  // both mini-batches
    EXPECT_TRUE(row.at("loss/mean").is_null());
    EXPECT_GT(row.at("rollout/tokens").get<double>(), 0);
  }
  EXPECT_EQ(num_steps, 2);
}

// The weights take half of the memory, and training's other state twice the memory, so nothing is
// read or allocated.
TEST_F(TrainerFaultsTest, AModelThatTheMemoryCannotTrainIsRefused) {
  const int64_t available_bytes = AvailableMemoryBytes();
  constexpr int64_t kHiddenSize = 1 << 14, kMaxVocabulary = 1 << 24;
  const int64_t vocab_size =
      available_bytes / 2 / static_cast<int64_t>(sizeof(float)) / kHiddenSize;
  if (vocab_size > kMaxVocabulary)
    GTEST_SKIP() << "no model is as large as half of " << available_bytes << " bytes";
  auto config = nlohmann::json::parse(ModelConfigText());
  config["vocab_size"] = vocab_size;
  config["hidden_size"] = kHiddenSize;
  const std::string large = dir_.File("large");
  std::filesystem::copy(dir_.File("student/model"), large);
  WriteFile(large + "/config.json", config.dump());
  const char* const message = "of gradients and optimizer state; cpu has ";
  ExpectFailure({Concat("student.model=", large)}, 71, "The line that is too large is \"");
  ExpectFailure({Concat("student.model=", large), "trainer.memory_plan=warn"}, 71, message);

  std::string output;
  EXPECT_EQ(Run({"sft", "--config", dir_.File("sft.yaml"), "--set",
                 Concat("model.config=", large, "/config.json"), "--set",
                 Concat("run.dir=", dir_.File("new"))},
                &output),
            71);
  EXPECT_THAT(output, HasSubstr(message));
}

TEST_F(TrainerFaultsTest, NoTeacherAtTheStart) { ExpectFailure({}, 69, "teacher"); }

TEST_F(TrainerFaultsTest, LimitsOfTheTeacherAreNamed) {
  TeacherProcess teacher(dir_, teacher_model_, /*grpc_port=*/0, {"--max-model-len=64"});
  std::string output;
  EXPECT_EQ(Train(teacher.endpoint(), &output, {"teacher.top_k=4000"}), 64);
  EXPECT_THAT(output, HasSubstr("teacher.top_k 4000 exceeds the teacher's limit"));
  EXPECT_EQ(Train(teacher.endpoint(), &output,
                  {"data.max_response_length=60", Concat("run.dir=", dir_.File("r2"))}),
            64);
  EXPECT_THAT(output, HasSubstr("max_model_len 64"));
}

TEST_F(TrainerFaultsTest, ATeacherWithAnotherTokenizer) {
  const std::string toy = SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json");
  const std::string teacher_dir = dir_.File("teacher"), student_dir = dir_.File("other");
  std::filesystem::copy(teacher_model_, teacher_dir);
  std::filesystem::copy(dir_.File("student/model"), student_dir);
  std::filesystem::copy_file(toy, student_dir + "/tokenizer.json");
  auto tokenizer = nlohmann::json::parse(ReadFile(toy));
  auto added = tokenizer.at("added_tokens").back();
  added["content"] = "<|another|>";
  added["id"] = added["id"].get<int>() + 1;
  tokenizer["added_tokens"].push_back(added);
  WriteFile(teacher_dir + "/tokenizer.json", tokenizer.dump());
  TeacherProcess teacher(dir_, teacher_dir);
  std::string output;
  EXPECT_EQ(Train(teacher.endpoint(), &output, {Concat("student.model=", student_dir)}), 64);
  EXPECT_THAT(output, HasSubstr("another tokenizer"));
}

TEST_F(TrainerFaultsTest, AControlPortInUse) {
  const PortInUse holder;
  const int port = holder.port();
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  EXPECT_EQ(Train(teacher.endpoint(), &output, {Concat("trainer.http_port=", port)}), 64);
  EXPECT_THAT(output, HasSubstr(std::to_string(port)));
}

// Compares a run of 60 steps whose teacher is killed in the middle with the same undisturbed run.
class LostTeacherTest : public TrainerFaultsTest {
 protected:
  void SetUp() override {
    TrainerFaultsTest::SetUp();
    teacher_.emplace(dir_, teacher_model_);
    port_ = teacher_->grpc_port();
    std::string output;
    ASSERT_EQ(Train(teacher_->endpoint(), &output,
                    {"trainer.total_steps=60", Concat("run.dir=", dir_.File("whole"))}),
              0)
        << output;
  }
  // Starts the trainer and kills the teacher after step 4.
  void LoseTeacher(std::vector<std::string> settings) {
    settings.push_back("trainer.total_steps=60");
    std::vector<std::string> arguments = TrainArguments(teacher_->endpoint(), settings);
    arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
    trainer_.emplace(arguments, dir_.File("train.log"));
    ASSERT_TRUE(PollUntil(absl::Seconds(60),
                          [&] { return NewestCheckpoint("run") >= 4 || !trainer_->running(); }));
    teacher_->process().Signal(SIGKILL);
    teacher_->process().Wait();
  }
  void ReturnTeacher() { teacher_.emplace(dir_, teacher_model_, port_); }
  void ExpectSameAsWhole() {
    EXPECT_EQ(Losses(dir_.File("run")), Losses(dir_.File("whole")));
    EXPECT_EQ(Losses(dir_.File("run")).size(), 60u);
    EXPECT_EQ(FileHash(dir_.File("run/model/model.safetensors")),
              FileHash(dir_.File("whole/model/model.safetensors")));
  }

  std::optional<TeacherProcess> teacher_;
  std::optional<Process> trainer_;
  int port_ = 0;
};

TEST_F(LostTeacherTest, ARunThatGaveUpLosesNothing) {
  ASSERT_NO_FATAL_FAILURE(LoseTeacher({"teacher.outage_budget_s=1", "teacher.timeout_s=2"}));
  EXPECT_EQ(trainer_->Wait(absl::Seconds(60)), 69) << trainer_->Output();
  ReturnTeacher();
  std::string output;
  ASSERT_EQ(Train(teacher_->endpoint(), &output, {"trainer.total_steps=60"}, {"--resume"}), 0)
      << output;
  ExpectSameAsWhole();
}

TEST_F(LostTeacherTest, ATeacherThatComesBackIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(LoseTeacher({}));
  ReturnTeacher();
  EXPECT_EQ(trainer_->Wait(absl::Seconds(120)), 0) << trainer_->Output();
  EXPECT_GT(LastMetric("run", "teacher/retries"), 0) << "the teacher was never missed";
  ExpectSameAsWhole();
}

}  // namespace
}  // namespace taopd::testing
