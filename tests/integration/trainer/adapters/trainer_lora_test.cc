// Runs that train adapters (student.lora), their files, and a teacher that serves one.

#include <algorithm>

#include "common/model/config/lora_config.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

// Sums in another order change a log-prob by about this much.
constexpr double kSumOrder = 1e-5;

class TrainerLoraTest : public TrainerTest {
 protected:
  Strings Settings(const std::string& run, const Strings& more = {}) {
    return Joined({"student.lora.rank=4", "student.lora.alpha=8", "optimizer.lr=1e-2",
                   "dist.deterministic=true", RunDir(run)},
                  more);
  }
  void ExpectRefused(const Strings& settings, const std::string& message,
                     const Strings& flags = {}) {
    EXPECT_NE(Train(settings, flags), 0);
    EXPECT_THAT(output_, HasSubstr(message));
  }
  // Merges the adapter of a run into its base. Returns the directory of the model.
  std::string Export(const std::string& run) {
    EXPECT_TRUE(Runs({"export", "--run", dir_.File(run), "--output", dir_.File("merged")}));
    return dir_.File("merged");
  }
  std::string AdapterOf(const std::string& run) {
    return FileHash(dir_.File(run + "/model/adapter_model.safetensors"));
  }
  // Returns the revision that a teacher logs.
  std::string RevisionOf(const std::string& model, const Strings& flags = {}) {
    const std::string log = ServingTeacher(model, flags).Errors();
    const size_t at = log.find("revision=");
    EXPECT_NE(at, std::string::npos) << log;
    return at == std::string::npos ? "" : log.substr(at, log.find_first_of(" \n", at) - at);
  }
};

TEST_F(TrainerLoraTest, OnlyTheAdapterIsTrainedAndStored) {
  const auto base = ModelOf("student");
  const Strings one_update = {"trainer.mini_batch_size=4"};
  ASSERT_TRUE(Trains(Settings("run", one_update)));
  EXPECT_EQ(ModelOf("student"), base);
  for (const std::string dir : {"run/model", "run/checkpoints/step-000006/model"}) {
    EXPECT_TRUE(Exists(dir + "/adapter_config.json")) << dir;
    EXPECT_FALSE(Exists(dir + "/model.safetensors")) << dir;
    EXPECT_FALSE(Exists(dir + "/config.json")) << dir;
  }
  // Far less than the weights and their moments.
  EXPECT_LT(std::filesystem::file_size(CheckpointOf("run", 6) + "/optimizer.safetensors"),
            std::filesystem::file_size(dir_.File("student/model/model.safetensors")));
  EXPECT_LT(LastMetric("run", "eval/kl_to_teacher"), Losses("run").front() * 2);
  // On-policy but for the order in which generation and training sum attention.
  EXPECT_NEAR(LastMetric("run", "policy/kl_behavior"), 0, kSumOrder);

  // The run is finished, and a further one changes nothing.
  const auto files = FilesOf(dir_.File("run"));
  ASSERT_TRUE(Trains(Settings("run", one_update), {"--resume"}));
  EXPECT_EQ(FilesOf(dir_.File("run")), files);

  // The model that is merged, as the trainer and the teacher see it.
  const std::string merged = Export("run");
  EXPECT_TRUE(Exists("merged/config.json"));
  EXPECT_EQ(DistanceToTeacher({FromTeacher()}, {"--model", merged}),
            DistanceToTeacher({FromTeacher()}, {"--model", dir_.File("run/model")}));
}

TEST_F(TrainerLoraTest, ATeacherServesABaseWithAnAdapter) {
  ASSERT_TRUE(Trains(Settings("run")));
  const std::string base = dir_.File("student/model"), adapter = dir_.File("run/model");
  const std::string merged = RevisionOf(Export("run"));
  EXPECT_EQ(RevisionOf(base, {"--lora", adapter}), merged);
  EXPECT_EQ(RevisionOf(base, {"--lora", adapter, "--tensor-parallel-size", "2"}), merged);
  EXPECT_NE(RevisionOf(base), merged);
  const std::string absent = dir_.File("absent");
  const std::vector<std::pair<Strings, std::string>> cases = {
      {{"--model", adapter},
       Concat("--model ", adapter,
              " is an adapter: name its base with --model and the adapter with --lora")},
      {{"--model", base, "--lora", absent},
       Concat(base, ": cannot open ", absent, "/adapter_config.json: No such file or directory")},
      {{"--model", stories_, "--lora", adapter},
       "has shape [4, 32], the configuration asks for [4, 64]"}};
  for (const auto& [wrong, message] : cases) {
    EXPECT_EQ(
        RunCommand(Joined({BinaryPath("taopd-teacher"), "--port", "0", "--grpc-port", "0"}, wrong)),
        65);
    EXPECT_THAT(output_, HasSubstr(message));
  }
}

TEST_F(TrainerLoraTest, RanksAndRecomputationChangeNothing) {
  ASSERT_TRUE(Trains(Settings("one")));
  ASSERT_TRUE(Trains(Settings("two"), {}, 2));
  EXPECT_EQ(AdapterOf("two"), AdapterOf("one"));
  // The run moves between one rank and two.
  ASSERT_TRUE(Trains(Settings("moved", {"trainer.total_steps=2"}), {}, 2));
  ASSERT_TRUE(Trains(Settings("moved", {"trainer.total_steps=4"}), {"--resume"}));
  ASSERT_TRUE(Trains(Settings("moved"), {"--resume"}, 2));
  EXPECT_EQ(AdapterOf("moved"), AdapterOf("one"));
  for (const std::string recompute : {"attention", "full"}) {
    ASSERT_TRUE(Trains(Settings(recompute, {"trainer.recompute=" + recompute})));
    EXPECT_EQ(AdapterOf(recompute), AdapterOf("one")) << recompute;
  }
  // The attention of the first layer has nothing to train and nothing trained before it.
  const std::string down = "student.lora.target_modules=[down_proj]";
  for (const std::string recompute : {"none", "attention", "full"}) {
    ASSERT_TRUE(Trains(Settings("down-" + recompute, {down, "trainer.recompute=" + recompute})));
    EXPECT_EQ(AdapterOf("down-" + recompute), AdapterOf("down-none")) << recompute;
  }
  // Sums of sharded gradients have another order.
  ASSERT_TRUE(
      Trains(Settings("sharded", {"dist.deterministic=false", "dist.gradients=sharded"}), {}, 2));
  ExpectSameLosses("sharded", "one", kSumOrder);
  EXPECT_NE(Losses("one").front(), Losses("one").back());
}

TEST_F(TrainerLoraTest, TheStudentTeachesItself) {
  for (const Strings& weights : {Strings{"teacher.weights=start"},
                                 {"teacher.weights=start", "teacher.refresh_every=3"},
                                 {"teacher.weights=ema", "teacher.ema=0.5"},
                                 {"teacher.weights=live"}}) {
    const std::string name = weights.back();
    SCOPED_TRACE(name);
    const Strings settings = Joined({"teacher.kind=self"}, weights);
    ASSERT_TRUE(Trains(Settings(name, settings)));
    const Strings shorter = Joined(settings, {"trainer.total_steps=2"});
    ASSERT_TRUE(Trains(Settings("moved" + name, shorter), {}, 2));
    ASSERT_TRUE(Trains(Settings("moved" + name, settings), {"--resume"}));
    EXPECT_EQ(AdapterOf("moved" + name), AdapterOf(name));
    EXPECT_EQ(LastMetric("moved" + name, "eval/kl_to_teacher"),
              LastMetric(name, "eval/kl_to_teacher"));
  }
}

TEST_F(TrainerLoraTest, TheBaseMayMove) {
  ASSERT_TRUE(Trains(Settings("whole")));
  ASSERT_TRUE(Trains(Settings("run", {"trainer.total_steps=3"})));
  std::filesystem::rename(dir_.File("student"), dir_.File("moved"));
  const std::string base = dir_.File("moved/model");
  ASSERT_TRUE(Trains(Settings("run", {"student.model=" + base}),
                     {"--resume", "--allow-change", "student.model"}));
  EXPECT_EQ(AdapterOf("run"), AdapterOf("whole"));
  EXPECT_EQ(ReadJson("run/model/adapter_config.json").at("base_model_name_or_path"), base);
}

TEST_F(TrainerLoraTest, AnAdapterIsTrainedFurtherOrMerged) {
  ASSERT_TRUE(Trains(Settings("run")));
  const std::string from = "student.model=" + dir_.File("run/model");
  ASSERT_TRUE(Trains(Settings("further", {from})));
  EXPECT_NE(AdapterOf("further"), AdapterOf("run"));
  EXPECT_LT(Losses("further").front(), Losses("run").front());
  // Other settings than those of the file.
  ExpectRefused(Settings("x", {from, "student.lora.rank=8"}), "lora.rank = 8, but the adapter in");
  ExpectRefused(Settings("x", {from, "student.lora.alpha=4"}),
                "lora.alpha = 4, but the adapter in");
  ExpectRefused(Settings("x", {from, "student.lora.target_modules=[q_proj]"}),
                "lora.target_modules are others");
  // Without lora.rank, the merged weights are trained.
  ASSERT_TRUE(Trains(Settings("full", {from, "student.lora.rank=0", "optimizer.lr=0"})));
  EXPECT_EQ(WeightsOf("full"), FileHash(Export("run") + "/model.safetensors"));
}

// The norms, and the embedding to which the head is tied, have the type of the student.
TEST_F(TrainerLoraTest, SavedModulesAreTrainedStoredAndServed) {
  const auto saved = [&](const std::string& run, const Strings& more = {}) {
    return Settings(run, Joined({"student.dtype=bfloat16", "optimizer.lr=1e-3",
                                 "student.lora.modules_to_save=[norm, lm_head]"},
                                more));
  };
  ASSERT_TRUE(Trains(saved("one")));
  ASSERT_TRUE(Trains(saved("two"), {}, 2));
  EXPECT_EQ(AdapterOf("two"), AdapterOf("one"));
  ASSERT_TRUE(Trains(saved("moved", {"trainer.total_steps=2"}), {}, 2));
  ASSERT_TRUE(Trains(saved("moved"), {"--resume"}));
  EXPECT_EQ(AdapterOf("moved"), AdapterOf("one"));
  for (const std::string recompute : {"attention", "full"}) {
    ASSERT_TRUE(Trains(saved(recompute, {"trainer.recompute=" + recompute})));
    EXPECT_EQ(AdapterOf(recompute), AdapterOf("one")) << recompute;
  }
  const auto config = ReadJson("one/model/adapter_config.json");
  EXPECT_EQ(config.at("modules_to_save"), (nlohmann::json{"embed_tokens", "norm"}));
  EXPECT_EQ(config.at("ensure_weight_tying"), true);

  // Served and exported, they replace those of the base.
  EXPECT_EQ(RevisionOf(dir_.File("student/model"), {"--lora", dir_.File("one/model")}),
            RevisionOf(Export("one")));

  // An average of them teaches, one step off.
  const Strings ema = {"teacher.kind=self", "teacher.weights=ema", "teacher.ema=0.5",
                       "trainer.async_steps=1"};
  ASSERT_TRUE(Trains(saved("ema", ema)));
  ASSERT_TRUE(Trains(saved("ema-two", ema), {}, 2));
  EXPECT_EQ(AdapterOf("ema-two"), AdapterOf("ema"));

  // They are trained further, and only they.
  const std::string from = "student.model=" + dir_.File("one/model");
  ASSERT_TRUE(Trains(saved("further", {from})));
  EXPECT_LT(Losses("further").front(), Losses("one").front());
  ExpectRefused(saved("x", {from, "student.lora.modules_to_save=[model.norm, lm_head]"}),
                "lora.modules_to_save are others than those of the adapter");
}

TEST_F(TrainerLoraTest, AnotherBaseIsRefused) {
  ASSERT_TRUE(Trains(Settings("run", {"trainer.total_steps=2"})));
  Damage(dir_.File("student/model/model.safetensors"));
  ExpectRefused(Settings("run"), "base_revision", {"--resume"});
}

TEST_F(TrainerLoraTest, SettingsThatDoNotFitTheStudentAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"student.lora.modules_to_save=[q_norm]", "modules_to_save: the model has no \"q_norm\""},
      {"student.lora.dropout=0.1", "student.lora.dropout"},
      {"student.tokenizer=" + stories_, "student.tokenizer is set"}};
  for (const auto& [setting, message] : cases) {
    ExpectRefused(Settings("bad", {kNobody, setting}), message);
  }
}

TEST_F(TrainerLoraTest, SupervisedTrainingHasAdapters) {
  const auto sft = [&](const std::string& run, int64_t steps, const Strings& flags) {
    return SftArguments(Words(Concat("model.init=", dir_.File("student/model"),
                                     " model.lora.rank=4 optimizer.lr=1e-2 trainer.save_every=1 ",
                                     RunDir(run), " trainer.total_steps=", steps)),
                        flags);
  };
  ASSERT_TRUE(Runs(sft("whole", 4, {})));
  ASSERT_TRUE(Runs(sft("parts", 2, {})));
  ASSERT_TRUE(Runs(sft("parts", 4, {"--resume"})));
  EXPECT_EQ(AdapterOf("parts"), AdapterOf("whole"));
  EXPECT_LT(Losses("whole").back(), Losses("whole").front());
  ExpectFails(SftArguments({"model.lora.rank=4", RunDir("random")}), 65,
              "model.lora.rank = 4 needs model.init");
}

}  // namespace
}  // namespace taopd::testing
