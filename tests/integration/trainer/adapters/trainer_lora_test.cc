// Runs that train adapters (student.lora), their files, and a teacher that serves one.

#include <algorithm>

#include "common/model/config/lora_config.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

// Sums in another order change a log-prob by about this much.
constexpr double kSumOrder = 1e-5;

using ::testing::HasSubstr;

class TrainerLoraTest : public TrainerTest {
 protected:
  std::vector<std::string> Settings(const std::string& run,
                                    const std::vector<std::string>& more = {}) {
    std::vector<std::string> settings = {"student.lora.rank=4", "student.lora.alpha=8",
                                         "optimizer.lr=1e-2", "dist.deterministic=true",
                                         Concat("run.dir=", dir_.File(run))};
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }
  int TrainOnRanks(int64_t num_ranks, const std::string& endpoint, std::string* output,
                   const std::vector<std::string>& settings,
                   const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {BinaryPath("taopd-trainer")};
    if (num_ranks > 1) {
      for (const char* word : {"launch", "--nproc", "2", "--"}) arguments.push_back(word);
    }
    const std::vector<std::string> train = TrainArguments(endpoint, settings, flags);
    arguments.insert(arguments.end(), train.begin(), train.end());
    return RunProgram(arguments, dir_.File("command.log"), output, absl::Seconds(120));
  }
  std::string AdapterOf(const std::string& run) {
    return FileHash(dir_.File(run + "/model/adapter_model.safetensors"));
  }
  // Returns the revision that a teacher logs.
  std::string RevisionOf(const std::string& model, const std::vector<std::string>& flags = {}) {
    TeacherProcess teacher(dir_, model, 0, flags);
    const std::string log = teacher.process().Output();
    const size_t at = log.find("revision=");
    EXPECT_NE(at, std::string::npos) << log;
    return at == std::string::npos ? "" : log.substr(at, log.find_first_of(" \n", at) - at);
  }
};

TEST_F(TrainerLoraTest, OnlyTheAdapterIsTrainedAndStored) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const auto base = FilesOf(dir_.File("student/model"));
  const std::vector<std::string> one_update = {"trainer.mini_batch_size=4"};
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run", one_update)), 0) << output;
  EXPECT_EQ(FilesOf(dir_.File("student/model")), base);
  for (const char* dir : {"run/model", "run/checkpoints/step-000006/model"}) {
    EXPECT_TRUE(std::filesystem::exists(dir_.File(dir) + "/adapter_config.json")) << dir;
    EXPECT_FALSE(std::filesystem::exists(dir_.File(dir) + "/model.safetensors")) << dir;
    EXPECT_FALSE(std::filesystem::exists(dir_.File(dir) + "/config.json")) << dir;
  }
  // Far less than the weights and their moments.
  EXPECT_LT(
      std::filesystem::file_size(dir_.File("run/checkpoints/step-000006/optimizer.safetensors")),
      std::filesystem::file_size(dir_.File("student/model/model.safetensors")));
  EXPECT_LT(LastMetric("run", "eval/kl_to_teacher"), Losses(dir_.File("run")).front() * 2);
  // On-policy but for the order in which generation and training sum attention.
  EXPECT_NEAR(LastMetric("run", "policy/kl_behavior"), 0, kSumOrder);

  // The run is finished, and a further one changes nothing.
  const auto files = FilesOf(dir_.File("run"));
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run", one_update), {"--resume"}), 0)
      << output;
  EXPECT_EQ(FilesOf(dir_.File("run")), files);

  // The model that is merged, as the trainer and the teacher see it.
  ASSERT_EQ(Run({"export", "--run", dir_.File("run"), "--output", dir_.File("merged")}, &output), 0)
      << output;
  EXPECT_TRUE(std::filesystem::exists(dir_.File("merged/config.json")));
  std::vector<std::string> distances;
  for (const std::string& model : {dir_.File("merged"), dir_.File("run/model")}) {
    const std::string json = dir_.File("eval.json");
    ASSERT_EQ(Run({"eval", "--config", dir_.File("train.yaml"), "--model", model, "--output", json,
                   "--set", Concat("teacher.endpoints=[", teacher.endpoint(), "]")},
                  &output),
              0)
        << output;
    distances.push_back(Concat(nlohmann::json::parse(ReadFile(json)).at("kl_to_teacher")));
  }
  EXPECT_EQ(distances[0], distances[1]);
}

TEST_F(TrainerLoraTest, ATeacherServesABaseWithAnAdapter) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run")), 0) << output;
  ASSERT_EQ(Run({"export", "--run", dir_.File("run"), "--output", dir_.File("merged")}, &output), 0)
      << output;
  const std::string base = dir_.File("student/model"), adapter = dir_.File("run/model");
  const std::string merged = RevisionOf(dir_.File("merged"));
  EXPECT_EQ(RevisionOf(base, {"--lora", adapter}), merged);
  EXPECT_EQ(RevisionOf(base, {"--lora", adapter, "--tensor-parallel-size", "2"}), merged);
  EXPECT_NE(RevisionOf(base), merged);
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--model", adapter},
                                                {"--model", base, "--lora", dir_.File("absent")},
                                                {"--model", teacher_model_, "--lora", adapter}}) {
    std::vector<std::string> arguments = {BinaryPath("taopd-teacher"), "--port", "0", "--grpc-port",
                                          "0"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    EXPECT_NE(RunProgram(arguments, dir_.File("wrong.log"), &output, absl::Seconds(60)), 0);
    EXPECT_THAT(output, ::testing::AnyOf(HasSubstr("--lora"), HasSubstr("adapter_config.json"),
                                         HasSubstr("lora_")))
        << wrong.back();
  }
}

TEST_F(TrainerLoraTest, RanksAndRecomputationChangeNothing) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const std::string endpoint = teacher.endpoint();
  ASSERT_EQ(TrainOnRanks(1, endpoint, &output, Settings("one")), 0) << output;
  ASSERT_EQ(TrainOnRanks(2, endpoint, &output, Settings("two")), 0) << output;
  EXPECT_EQ(AdapterOf("two"), AdapterOf("one"));
  // The run moves between one rank and two.
  ASSERT_EQ(TrainOnRanks(2, endpoint, &output, Settings("moved", {"trainer.total_steps=2"})), 0)
      << output;
  ASSERT_EQ(TrainOnRanks(1, endpoint, &output, Settings("moved", {"trainer.total_steps=4"}),
                         {"--resume"}),
            0)
      << output;
  ASSERT_EQ(TrainOnRanks(2, endpoint, &output, Settings("moved"), {"--resume"}), 0) << output;
  EXPECT_EQ(AdapterOf("moved"), AdapterOf("one"));
  for (const std::string recompute : {"attention", "full"}) {
    ASSERT_EQ(Train(endpoint, &output, Settings(recompute, {"trainer.recompute=" + recompute})), 0)
        << output;
    EXPECT_EQ(AdapterOf(recompute), AdapterOf("one")) << recompute;
  }
  // The attention of the first layer has nothing to train and nothing trained before it.
  const std::string down = "student.lora.target_modules=[down_proj]";
  for (const std::string recompute : {"none", "attention", "full"}) {
    ASSERT_EQ(Train(endpoint, &output,
                    Settings("down-" + recompute, {down, "trainer.recompute=" + recompute})),
              0)
        << output;
    EXPECT_EQ(AdapterOf("down-" + recompute), AdapterOf("down-none")) << recompute;
  }
  // Sums of sharded gradients have another order.
  ASSERT_EQ(
      TrainOnRanks(2, endpoint, &output,
                   Settings("sharded", {"dist.deterministic=false", "dist.gradients=sharded"})),
      0)
      << output;
  const auto one = Losses(dir_.File("one")), sharded = Losses(dir_.File("sharded"));
  ASSERT_EQ(sharded.size(), one.size());
  for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(sharded[i], one[i], 1e-4 * std::abs(one[i]));
  EXPECT_NE(Losses(dir_.File("one")).front(), Losses(dir_.File("one")).back());
}

TEST_F(TrainerLoraTest, TheStudentTeachesItself) {
  std::string output;
  const std::string endpoint;  // there is none
  for (const std::vector<std::string>& weights :
       {std::vector<std::string>{"teacher.weights=start"},
        {"teacher.weights=start", "teacher.refresh_every=3"},
        {"teacher.weights=ema", "teacher.ema=0.5"},
        {"teacher.weights=live"}}) {
    const std::string name = weights.back();
    SCOPED_TRACE(name);
    std::vector<std::string> settings = {"teacher.kind=self"};
    settings.insert(settings.end(), weights.begin(), weights.end());
    ASSERT_EQ(TrainOnRanks(1, endpoint, &output, Settings(name, settings)), 0) << output;
    std::vector<std::string> shorter = settings;
    shorter.push_back("trainer.total_steps=2");
    ASSERT_EQ(TrainOnRanks(2, endpoint, &output, Settings("moved" + name, shorter)), 0) << output;
    ASSERT_EQ(TrainOnRanks(1, endpoint, &output, Settings("moved" + name, settings), {"--resume"}),
              0)
        << output;
    EXPECT_EQ(AdapterOf("moved" + name), AdapterOf(name));
    EXPECT_EQ(LastMetric("moved" + name, "eval/kl_to_teacher"),
              LastMetric(name, "eval/kl_to_teacher"));
  }
}

TEST_F(TrainerLoraTest, AnAdapterIsTrainedFurtherOrMerged) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run")), 0) << output;
  const std::string from = "student.model=" + dir_.File("run/model");
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("further", {from})), 0) << output;
  EXPECT_NE(AdapterOf("further"), AdapterOf("run"));
  EXPECT_LT(Losses(dir_.File("further")).front(), Losses(dir_.File("run")).front());
  // Other settings than those of the file.
  EXPECT_NE(Train(teacher.endpoint(), &output, Settings("x", {from, "student.lora.rank=8"})), 0);
  EXPECT_THAT(output, HasSubstr("lora.rank = 8, but the adapter in"));
  EXPECT_NE(Train(teacher.endpoint(), &output, Settings("x", {from, "student.lora.alpha=4"})), 0);
  EXPECT_THAT(output, HasSubstr("lora.alpha = 4, but the adapter in"));
  EXPECT_NE(Train(teacher.endpoint(), &output,
                  Settings("x", {from, "student.lora.target_modules=[q_proj]"})),
            0);
  EXPECT_THAT(output, HasSubstr("lora.target_modules are others"));
  // Without lora.rank, the merged weights are trained.
  ASSERT_EQ(Train(teacher.endpoint(), &output,
                  Settings("full", {from, "student.lora.rank=0", "optimizer.lr=0"})),
            0)
      << output;
  ASSERT_EQ(Run({"export", "--run", dir_.File("run"), "--output", dir_.File("merged")}, &output), 0)
      << output;
  EXPECT_EQ(FileHash(dir_.File("full/model/model.safetensors")),
            FileHash(dir_.File("merged/model.safetensors")));
}

// The norms, and the embedding to which the head is tied, have the type of the student.
TEST_F(TrainerLoraTest, SavedModulesAreTrainedStoredAndServed) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  const std::string endpoint = teacher.endpoint();
  const auto saved = [&](const std::string& run, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"student.dtype=bfloat16", "optimizer.lr=1e-3",
                               "student.lora.modules_to_save=[norm, lm_head]"});
    return Settings(run, more);
  };
  ASSERT_EQ(TrainOnRanks(1, endpoint, &output, saved("one")), 0) << output;
  ASSERT_EQ(TrainOnRanks(2, endpoint, &output, saved("two")), 0) << output;
  EXPECT_EQ(AdapterOf("two"), AdapterOf("one"));
  ASSERT_EQ(TrainOnRanks(2, endpoint, &output, saved("moved", {"trainer.total_steps=2"})), 0)
      << output;
  ASSERT_EQ(TrainOnRanks(1, endpoint, &output, saved("moved"), {"--resume"}), 0) << output;
  EXPECT_EQ(AdapterOf("moved"), AdapterOf("one"));
  for (const std::string recompute : {"attention", "full"}) {
    ASSERT_EQ(Train(endpoint, &output, saved(recompute, {"trainer.recompute=" + recompute})), 0)
        << output;
    EXPECT_EQ(AdapterOf(recompute), AdapterOf("one")) << recompute;
  }
  const auto config = nlohmann::json::parse(ReadFile(dir_.File("one/model/adapter_config.json")));
  EXPECT_EQ(config.at("modules_to_save"), (nlohmann::json{"embed_tokens", "norm"}));
  EXPECT_EQ(config.at("ensure_weight_tying"), true);

  // Served and exported, they replace those of the base.
  ASSERT_EQ(Run({"export", "--run", dir_.File("one"), "--output", dir_.File("merged")}, &output), 0)
      << output;
  const std::string base = dir_.File("student/model");
  EXPECT_EQ(RevisionOf(base, {"--lora", dir_.File("one/model")}), RevisionOf(dir_.File("merged")));

  // An average of them teaches, one step off.
  const std::vector<std::string> ema = {"teacher.kind=self", "teacher.weights=ema",
                                        "teacher.ema=0.5", "trainer.async_steps=1"};
  ASSERT_EQ(TrainOnRanks(1, "", &output, saved("ema", ema)), 0) << output;
  ASSERT_EQ(TrainOnRanks(2, "", &output, saved("ema-two", ema)), 0) << output;
  EXPECT_EQ(AdapterOf("ema-two"), AdapterOf("ema"));

  // They are trained further, and only they.
  const std::string from = "student.model=" + dir_.File("one/model");
  ASSERT_EQ(Train(endpoint, &output, saved("further", {from})), 0) << output;
  EXPECT_LT(Losses(dir_.File("further")).front(), Losses(dir_.File("one")).front());
  EXPECT_NE(Train(endpoint, &output,
                  saved("x", {from, "student.lora.modules_to_save=[model.norm, lm_head]"})),
            0);
  EXPECT_THAT(output, HasSubstr("lora.modules_to_save are others than those of the adapter"));
}

TEST_F(TrainerLoraTest, AnotherBaseIsRefused) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output, Settings("run", {"trainer.total_steps=2"})), 0)
      << output;
  // One bit of a weight of the base, behind the header.
  const std::string path = dir_.File("student/model/model.safetensors");
  std::string bytes = ReadFile(path);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  std::filesystem::remove(path);
  WriteFile(path, bytes);
  EXPECT_NE(Train(teacher.endpoint(), &output, Settings("run"), {"--resume"}), 0);
  EXPECT_THAT(output, HasSubstr("base_revision"));
}

TEST_F(TrainerLoraTest, BadSettingsAreRefusedByName) {
  std::string output;
  const std::string endpoint = "grpc://127.0.0.1:1";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"student.lora.rank=-1", "student.lora.rank = -1"},
      {"student.lora.alpha=0", "student.lora.alpha = 0"},
      {"student.lora.target_modules=[lm_head]", "\"lm_head\" is none of"},
      {"student.lora.target_modules=[]", "student.lora.target_modules = []"},
      {"student.lora.modules_to_save=[q_norm]", "modules_to_save: the model has no \"q_norm\""},
      {"student.lora.init=pissa", "student.lora.init"},
      {"student.lora.dropout=0.1", "student.lora.dropout"},
      {"student.tokenizer=" + teacher_model_, "student.tokenizer is set"}};
  for (const auto& [setting, message] : cases) {
    EXPECT_NE(Train(endpoint, &output, Settings("bad", {setting})), 0) << setting;
    EXPECT_THAT(output, HasSubstr(message)) << setting;
  }
}

TEST_F(TrainerLoraTest, SupervisedTrainingHasAdapters) {
  std::string output;
  const auto sft = [&](const std::string& run, int64_t steps,
                       const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"sft",
                                          "--config",
                                          dir_.File("sft.yaml"),
                                          "--set",
                                          "model.init=" + dir_.File("student/model"),
                                          "--set",
                                          "model.lora.rank=4",
                                          "--set",
                                          "run.dir=" + dir_.File(run),
                                          "--set",
                                          "optimizer.lr=1e-2",
                                          "--set",
                                          Concat("trainer.total_steps=", steps),
                                          "--set",
                                          "trainer.save_every=1"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Run(arguments, &output);
  };
  ASSERT_EQ(sft("whole", 4, {}), 0) << output;
  ASSERT_EQ(sft("parts", 2, {}), 0) << output;
  ASSERT_EQ(sft("parts", 4, {"--resume"}), 0) << output;
  EXPECT_EQ(AdapterOf("parts"), AdapterOf("whole"));
  EXPECT_LT(Losses(dir_.File("whole")).back(), Losses(dir_.File("whole")).front());
  EXPECT_NE(Run({"sft", "--config", dir_.File("sft.yaml"), "--set", "model.lora.rank=4", "--set",
                 "run.dir=" + dir_.File("random")},
                &output),
            0);
  EXPECT_THAT(output, HasSubstr("model.lora.rank = 4 needs model.init"));
}

}  // namespace
}  // namespace taopd::testing
