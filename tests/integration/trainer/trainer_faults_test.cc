// Tests of bad input: the exit code is right, the message names the cause, and nothing is lost.
// Further inputs are in trainer_overwrite_test.cc.

#include "common/base/memory.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

class TrainerFaultsTest : public TrainerTest {
 protected:
  // Expects `train` to fail before it needs a teacher.
  void ExpectFailure(const Strings& settings, int code, const std::string& message) {
    ExpectTrainFails(Joined({kNobody, "teacher.connect_timeout_s=0.2"}, settings), code, message);
  }
};

TEST_F(TrainerFaultsTest, MisspeltKeysAndBadValues) {
  WriteTrainConfig("optimiser: {lr: 1}\n");
  ExpectFailure({}, 64, "unknown key \"optimiser\" (did you mean \"optimizer\"?)");
  WriteTrainConfig("");
  ExpectFailure({"optimizer.lrr=1"}, 64, "optimizer.lrr");
  ExpectFailure({"trainer.mini_batch_size=3"}, 64, "must divide data.train_batch_size");
  ExpectFailure({"objective.name=ta_opdd"}, 64, "did you mean \"ta_opd\"");
  ExpectFailure({"teacher.endpoints=[http://x]"}, 64, "teacher.endpoints");
  ExpectFails({"train", "--config", "/nowhere.yaml"}, 64, "/nowhere.yaml");
  const std::vector<std::pair<Strings, std::string>> unknown = {
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
  for (const auto& [arguments, message] : unknown) ExpectFails(arguments, 64, message);
  ExpectFails({"train"}, 64, "--config is required");
  EXPECT_TRUE(Runs({"--version"}));
  EXPECT_THAT(output_, ::testing::ContainsRegex(
                           "^taopd-trainer [0-9]+\\.[0-9]+\\.[0-9]+\nCPU kernels: [a-z0-9_]+\n"));
  EXPECT_FALSE(Exists("run"));
}

// There is no model, file of data or teacher.
TEST_F(TrainerFaultsTest, ACommandChecksAConfigurationAlone) {
  WriteTrainConfig("");
  const Strings check =
      With({"config", "--config", dir_.File("train.yaml")},
           {kNobody, "student.model=/none", "data.train=[/none.jsonl]", "data.val=[/none.jsonl]"});
  ASSERT_TRUE(Runs(check));
  EXPECT_THAT(output_, HasSubstr("\n  model: \"/none\"\n"));
  // It prints the same configuration with all settings.
  WriteFile(dir_.File("all.yaml"), output_);
  ASSERT_TRUE(Runs({"config", "--config", dir_.File("all.yaml")}));
  EXPECT_EQ(output_, ReadFile(dir_.File("all.yaml")));
  for (const auto& [setting, says] :
       {std::pair("trainer.step=3", "unknown key \"trainer.step\""),
        {"trainer.total_steps=0", "trainer.total_steps"},
        {"trainer.mini_batch_size=3", "must divide data.train_batch_size"},
        {"data.prompt_template=x", "data: prompt_template \"x\" is not a built-in one"}}) {
    ExpectFails(With(check, {setting}), 64, says);
  }
  const Strings sft = {"config", "sft", "--set", "model.tokenizer=/none"};
  ASSERT_TRUE(Runs(sft));
  EXPECT_THAT(output_, HasSubstr("\n  tokenizer: \"/none\"\n"));
  ExpectFails(With(sft, {"model.lora.rank=4"}), 64, "model.tokenizer");
  ASSERT_TRUE(Runs({"config", "sft"}));
  EXPECT_THAT(output_, HasSubstr("| `model.tokenizer` | text |"));
  EXPECT_FALSE(Exists("run"));
}

// There is no teacher, and the trainer does not wait for one.
TEST_F(TrainerFaultsTest, ALengthThatTheStudentLacksIsNamedBeforeATeacherIsAsked) {
  WriteTrainConfig("");
  ExpectFailure({"data.max_response_length=120", "teacher.connect_timeout_s=20"}, 64,
                "exceeds the student's max_position_embeddings 128");
}

// A weight beyond float32 makes every loss infinite, so there is no update, and the run ends by
// itself.
TEST_F(TrainerFaultsTest, LossesThatStayNonFiniteEndTheRun) {
  WriteTrainConfig("objective: {terms: [{name: ta_opd, weight: 1.0e+300}]}\n");
  EXPECT_EQ(Train({"trainer.max_nonfinite_steps=2", "trainer.max_bad_batches=3"}), 76) << output_;
  EXPECT_EQ(FilesOf(dir_.File("run/bad_batches")).size(), 3u) << "of four that were skipped";
  EXPECT_THAT(output_, HasSubstr("prompt=prompts.jsonl:"));
  EXPECT_THAT(output_, HasSubstr("not finite in 2 steps in a row"));
  int64_t num_steps = 0;
  for (const auto& row : Lines("run/metrics.jsonl")) {
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
  ExpectFails(SftArguments({Concat("model.config=", large, "/config.json"), RunDir("new")}), 71,
              message);
}

TEST_F(TrainerFaultsTest, LimitsOfTheTeacherAreNamed) {
  StartTeacher(stories_, {"--max-model-len=64"});
  ExpectTrainFails({"data.max_response_length=60"}, 64, "max_model_len 64");
}

TEST_F(TrainerFaultsTest, ATeacherWithAnotherTokenizer) {
  const std::string toy = SourcePath("tests/common/text/data/qwen2_toy/tokenizer.json");
  const std::string teacher_dir = dir_.File("teacher"), student_dir = dir_.File("other");
  std::filesystem::copy(stories_, teacher_dir);
  std::filesystem::copy(dir_.File("student/model"), student_dir);
  std::filesystem::copy_file(toy, student_dir + "/tokenizer.json");
  auto tokenizer = nlohmann::json::parse(ReadFile(toy));
  auto added = tokenizer.at("added_tokens").back();
  added["content"] = "<|another|>";
  added["id"] = added["id"].get<int>() + 1;
  tokenizer["added_tokens"].push_back(added);
  WriteFile(teacher_dir + "/tokenizer.json", tokenizer.dump());
  StartTeacher(teacher_dir);
  ExpectTrainFails({Concat("student.model=", student_dir)}, 64, "another tokenizer");
}

TEST_F(TrainerFaultsTest, AMetricThatNoEvaluationProducesIsRefused) {
  ExpectFailure({"trainer.best_metric=eval/kl_to_teachr"}, 64,
                "trainer.best_metric = eval/kl_to_teachr: is not among");
  EXPECT_THAT(output_, HasSubstr("did you mean \"eval/kl_to_teacher\"?"));
  // The metric belongs to another measure, so the early stop would never be reached.
  ExpectFailure({"trainer.best_metric=eval/accuracy", "trainer.early_stop_evaluations=3"}, 64,
                "trainer.best_metric = eval/accuracy: is not among");
  ExpectFailure({"trainer.best_metric=eval/kl_to_teacher", "eval.measure=none"}, 64,
                "nothing is evaluated");
  EXPECT_FALSE(Exists("run/metrics.jsonl"));
}

}  // namespace
}  // namespace taopd::testing
