// Tests of the subcommands on real files: their output, and the completion of all variants of a
// run.

#include <httplib.h>

#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(TrainerTest, ARunWritesEverything) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Train(teacher.endpoint(), &output), 0) << output;
  const std::string run = dir_.File("run");
  EXPECT_EQ(Losses(run).size(), 6u);
  for (const char* file :
       {"config.yaml", "samples.jsonl", "tensorboard", "model/config.json",
        "model/model.safetensors", "checkpoints/step-000006/manifest.json",
        "checkpoints/step-000006/state.json", "checkpoints/step-000006/model/model.safetensors"}) {
    EXPECT_TRUE(std::filesystem::exists(run + "/" + file)) << file;
  }
  EXPECT_EQ(FileHash(run + "/model/model.safetensors"),
            FileHash(run + "/checkpoints/step-000006/model/model.safetensors"));
  // The settings that differ from the defaults, in the form of --set; the file has all settings.
  EXPECT_THAT(output, HasSubstr(Concat("the run keeps all in ", run, "/config.yaml\n")));
  EXPECT_THAT(output, HasSubstr("\ntrainer.mini_batch_size=2\n"));
  EXPECT_THAT(output, ::testing::Not(HasSubstr("optimizer.eps")));
  EXPECT_THAT(ReadFile(run + "/config.yaml"), HasSubstr("eps: "));
  EXPECT_THAT(ReadFile(run + "/config.yaml"), HasSubstr("mini_batch_size: 2"));
  // The KL to the teacher is measured before the first step, in the middle and at the end.
  const std::string metrics = ReadFile(run + "/metrics.jsonl");
  size_t evaluations = 0;
  for (size_t at = 0; (at = metrics.find("eval/kl_to_teacher", at)) != std::string::npos; ++at)
    ++evaluations;
  EXPECT_EQ(evaluations, 3u);

  ASSERT_EQ(Run({"report", run, "-o", dir_.File("report.html")}, &output), 0) << output;
  EXPECT_THAT(ReadFile(dir_.File("report.html")), HasSubstr("<svg"));
  // A second run in the same directory needs an explicit flag.
  EXPECT_EQ(Train(teacher.endpoint(), &output), 64);
  EXPECT_THAT(output, HasSubstr("--resume"));
  EXPECT_EQ(Train(teacher.endpoint(), &output, {}, {"--overwrite"}), 0) << output;
  EXPECT_EQ(Losses(run).size(), 6u);
  // A finished run that is resumed has nothing to do.
  EXPECT_EQ(Train(teacher.endpoint(), &output, {}, {"--resume"}), 0) << output;
  EXPECT_EQ(Losses(run).size(), 6u);
}

TEST_F(TrainerTest, DtypesObjectivesAndSingleRolloutsComplete) {
  TeacherProcess teacher(dir_, teacher_model_);
  const std::vector<std::vector<std::string>> variants = {
      {"student.dtype=bfloat16"},
      {"student.dtype=float32"},
      {"objective.name=normalized"},
      {"objective.name=sc_ta_opd"},
      {"objective.name=full"},
      {"objective.name=entropy_aware"},
      {"objective.support=student", "objective.full_kl_rows=5"},
      {"objective.support=union", "objective.student_top_k=7"},
      {"objective.terms=[{name: ta_opd}, {name: jsd, weight: 0.5}]"},
      {"rollout.n=1"},
      {"trainer.mini_batch_size=4", "data.shuffle=false"}};
  for (size_t i = 0; i < variants.size(); ++i) {
    std::vector<std::string> settings = variants[i];
    settings.push_back(Concat("run.dir=", dir_.File(Concat("variant-", i))));
    settings.push_back("trainer.total_steps=2");
    std::string output;
    EXPECT_EQ(Train(teacher.endpoint(), &output, settings), 0) << variants[i][0] << output;
  }
}

// They are refused at the start with the value, the limit and the exit code of a configuration
// error.
TEST_F(TrainerTest, ObjectivesThatTheTeacherCannotServe) {
  TeacherProcess teacher(dir_, teacher_model_, 0,
                         {"--max-dense-vocab-size", "511", "--max-logprobs", "20"});
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"objective.name=full"}, "its vocabulary of 512 exceeds its max_dense_vocab_size of 511"},
      {{"objective.full_kl_rows=1"},
       "objective.full_kl_rows needs the teacher's log-probs of every token"},
      {{"objective.support=student", "objective.student_top_k=21"},
       "objective.student_top_k 21 exceeds the teacher's limit of candidates, 20"},
      {{"objective.terms=[{name: nope}]"}, "objective.terms[0]: name"},
      {{"objective.terms=[{nam: ta_opd}]"}, "unknown key \"nam\""},
      {{"objective.name=full", "objective.support=student"}, "objective.support = student"},
      {{"teacher.top_k=21"}, "teacher.top_k 21 exceeds the teacher's limit of 20"},
  };
  for (const auto& [settings, says] : cases) {
    std::string output;
    EXPECT_EQ(Train(teacher.endpoint(), &output, settings), 64) << settings[0];
    EXPECT_THAT(output, HasSubstr(says));
  }
}

TEST_F(TrainerTest, StatusPagesWhileItRuns) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::vector<std::string> arguments =
      TrainArguments(teacher.endpoint(), {"trainer.total_steps=100000", "trainer.eval_every=0"});
  arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
  Process trainer(arguments, dir_.File("train.log"));
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return trainer.Output().find("control http=127.0.0.1:") != std::string::npos;
  }));
  EXPECT_THAT(ReadFile("/proc/" + std::to_string(trainer.pid()) + "/environ"),
              HasSubstr("GOMP_SPINCOUNT=1000"));  // waiting threads sleep soon
  const std::string log = trainer.Output();
  const size_t at =
      log.find("control http=127.0.0.1:") + std::string("control http=127.0.0.1:").size();
  httplib::Client client("127.0.0.1", std::stoi(log.substr(at)));
  nlohmann::json status;
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
    auto reply = client.Get("/status");
    if (!reply || reply->status != 200) return false;
    status = nlohmann::json::parse(reply->body);
    return status.at("step").get<int>() >= 1;
  }));
  EXPECT_EQ(status.at("run_name"), "test");
  EXPECT_EQ(status.at("total_steps"), 100000);
  EXPECT_TRUE(status.at("metrics").contains("loss/mean"));
  auto health = client.Get("/healthz");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
  auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_THAT(metrics->body, HasSubstr("taopd_trainer_loss_mean"));
  // A second trainer in the same directory is refused while this one lives.
  std::string output;
  EXPECT_EQ(Train(teacher.endpoint(), &output, {}, {"--resume"}), 64);
  EXPECT_THAT(output, HasSubstr(std::to_string(trainer.pid())));
  trainer.Signal(SIGTERM);
  EXPECT_EQ(trainer.Wait(), 75) << trainer.Output();
}

TEST_F(TrainerTest, APausedRunSavesAtOnce) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::vector<std::string> arguments =
      TrainArguments(teacher.endpoint(), {"trainer.total_steps=100000", "trainer.eval_every=0"});
  arguments.insert(arguments.begin(), BinaryPath("taopd-trainer"));
  Process trainer(arguments, dir_.File("train.log"));
  const std::string mark = "control http=127.0.0.1:";
  ASSERT_TRUE(PollUntil(absl::Seconds(60),
                        [&] { return trainer.Output().find(mark) != std::string::npos; }));
  const std::string log = trainer.Output();
  httplib::Client client("127.0.0.1", std::stoi(log.substr(log.find(mark) + mark.size())));
  const auto post = [&](const std::string& path) {
    const auto reply = client.Post(path, {{"X-Taopd-Control", "1"}}, "", "text/plain");
    return reply ? reply->status : 0;
  };
  const auto status = [&] { return nlohmann::json::parse(client.Get("/status")->body); };
  ASSERT_EQ(post("/pause"), 202);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return status().at("phase") == "paused"; }));
  const int64_t step = status().at("step");
  ASSERT_EQ(post("/save"), 202);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] {
    return NewestCheckpoint("run") == step && status().at("phase") == "paused";
  }));
  const std::string path = status().at("last_checkpoint");
  EXPECT_TRUE(std::filesystem::exists(path + "/manifest.json")) << path;
  EXPECT_EQ(status().at("step"), step);
  ASSERT_EQ(post("/resume"), 202);
  ASSERT_TRUE(PollUntil(absl::Seconds(60), [&] { return status().at("step") > step; }));
  trainer.Signal(SIGTERM);
  EXPECT_EQ(trainer.Wait(), 75) << trainer.Output();
}

TEST_F(TrainerTest, GenerateAndEvaluate) {
  TeacherProcess teacher(dir_, teacher_model_);
  std::string output;
  ASSERT_EQ(Run({"generate", "--model", teacher_model_, "--prompt-ids", "1", "--temperature", "0",
                 "--max-new-tokens", "8"},
                &output),
            0)
      << output;
  // "Once upon a time, there was": the published greedy continuation (karpathy/llama2.c,
  // test_all.py).
  EXPECT_THAT(output, HasSubstr("403 407 261 378 432 383 286 261"));

  // Without a length, generation ends at the model's last position; 1 of its 12 positions is taken.
  const std::string short_model = dir_.File("short_model");
  std::filesystem::copy(teacher_model_, short_model);
  auto config = nlohmann::json::parse(ReadFile(short_model + "/config.json"));
  config["max_position_embeddings"] = 12;
  WriteFile(short_model + "/config.json", config.dump());
  const std::vector<std::string> generate = {
      "generate", "--model", short_model, "--prompt-ids", "1", "--temperature", "0"};
  ASSERT_EQ(Run(generate, &output), 0) << output;
  std::istringstream ids(output.substr(output.find("403 407")));
  EXPECT_EQ(std::distance(std::istream_iterator<int>(ids), std::istream_iterator<int>()), 11)
      << output;
  std::vector<std::string> too_many = generate;
  too_many.insert(too_many.end(), {"--max-new-tokens", "12"});
  EXPECT_EQ(Run(too_many, &output), 64);
  EXPECT_THAT(output, HasSubstr("--max-new-tokens 12 exceeds max_position_embeddings 12"));

  ASSERT_EQ(
      Run({"eval", "--config", dir_.File("train.yaml"), "--model", teacher_model_, "--output",
           dir_.File("eval.json"), "--set", Concat("teacher.endpoints=[", teacher.endpoint(), "]")},
          &output),
      0)
      << output;
  // The teacher's distance to itself is near 0, because both sides compute the same numbers in
  // float32.
  EXPECT_NEAR(
      nlohmann::json::parse(ReadFile(dir_.File("eval.json"))).at("kl_to_teacher").get<double>(),
      0.0, 1e-5);
  ASSERT_EQ(Run({"eval", "--config", dir_.File("train.yaml"), "--output", dir_.File("eval.json"),
                 "--set", Concat("teacher.endpoints=[", teacher.endpoint(), "]")},
                &output),
            0)
      << output;
  EXPECT_GT(
      nlohmann::json::parse(ReadFile(dir_.File("eval.json"))).at("kl_to_teacher").get<double>(),
      1.0);
}

}  // namespace
}  // namespace taopd::testing
