// Tests of the subcommands on real files: their output.

#include <sstream>

#include "tests/integration/trainer/control_client.h"
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

TEST_F(TrainerTest, ARunWritesEverything) {
  ASSERT_TRUE(Trains());
  const std::string run = dir_.File("run");
  EXPECT_EQ(Losses("run").size(), 6u);
  for (const char* file :
       {"config.yaml", "samples.jsonl", "tensorboard", "model/config.json",
        "model/model.safetensors", "checkpoints/step-000006/manifest.json",
        "checkpoints/step-000006/state.json", "checkpoints/step-000006/model/model.safetensors"}) {
    EXPECT_TRUE(Exists(std::string("run/") + file)) << file;
  }
  EXPECT_EQ(WeightsOf("run"), FileHash(CheckpointOf("run", 6) + "/model/model.safetensors"));
  // The settings that differ from the defaults, in the form of --set; the file has all settings.
  EXPECT_THAT(output_, HasSubstr(Concat("the run keeps all in ", run, "/config.yaml\n")));
  EXPECT_THAT(output_, HasSubstr("\ntrainer.mini_batch_size=2\n"));
  EXPECT_THAT(output_, Not(HasSubstr("optimizer.eps")));
  EXPECT_THAT(ReadFile(run + "/config.yaml"), HasSubstr("eps: "));
  EXPECT_THAT(ReadFile(run + "/config.yaml"), HasSubstr("mini_batch_size: 2"));
  // The KL to the teacher is measured before the first step, in the middle and at the end.
  EXPECT_EQ(Evaluations("run").size(), 3u);

  ASSERT_TRUE(Runs({"report", run, "-o", dir_.File("report.html")}));
  EXPECT_THAT(ReadFile(dir_.File("report.html")), HasSubstr("<svg"));
}

// They are refused at the start with the value, the limit and the exit code of a configuration
// error.
TEST_F(TrainerTest, ObjectivesThatTheTeacherCannotServe) {
  StartTeacher(stories_, {"--max-dense-vocab-size", "511", "--max-logprobs", "20"});
  const std::vector<std::pair<Strings, std::string>> cases = {
      {{"objective.name=full"}, "its vocabulary of 512 exceeds its max_dense_vocab_size of 511"},
      {{"objective.full_kl_rows=1"},
       "objective.full_kl_rows needs the teacher's log-probs of every token"},
      {{"objective.support=student", "objective.student_top_k=21"},
       "objective.student_top_k 21 exceeds the teacher's limit of candidates, 20"},
      {{"objective.terms=[{nam: ta_opd}]"}, "unknown key \"nam\""},
      {{"teacher.top_k=21"}, "teacher.top_k 21 exceeds the teacher's limit of 20"},
  };
  for (const auto& [settings, says] : cases) ExpectTrainFails(settings, 64, says);
}

TEST_F(TrainerTest, PagesPausesAndSavesWhileItRuns) {
  const Strings train =
      Command(TrainArguments({"trainer.total_steps=100000", "trainer.eval_every=0"}));
  // The program sets the variable itself.
  Process trainer(Joined(Words("/usr/bin/env --unset=GOMP_SPINCOUNT"), train),
                  dir_.File("train.log"));
  ControlClient client(ControlClient::AwaitPort(trainer));
  EXPECT_THAT(ReadFile(Concat("/proc/", trainer.pid(), "/environ")),
              HasSubstr("GOMP_SPINCOUNT=1000"));  // waiting threads sleep soon
  ASSERT_TRUE(client.PassesStep(0));
  const nlohmann::json status = client.Status();
  EXPECT_EQ(status.at("run_name"), "test");
  EXPECT_EQ(status.at("total_steps"), 100000);
  EXPECT_TRUE(status.at("metrics").contains("loss/mean"));
  const auto health = client.http.Get("/healthz"), metrics = client.http.Get("/metrics");
  ASSERT_TRUE(health && metrics);
  EXPECT_EQ(health->status, 200);
  EXPECT_THAT(metrics->body, HasSubstr("taopd_trainer_loss_mean"));
  // A second trainer in the same directory is refused while this one lives.
  ExpectTrainFails({}, 64, Concat(trainer.pid()), {"--resume"});

  PauseSaveAndGoOn("run", client);
  trainer.Signal(SIGTERM);
  EXPECT_EQ(trainer.Wait(), 75) << trainer.Output();
}

TEST_F(TrainerTest, GenerateAndEvaluate) {
  ASSERT_TRUE(Runs({"generate", "--model", stories_, "--prompt-ids", "1", "--temperature", "0",
                    "--max-new-tokens", "8"}));
  // "Once upon a time, there was": the published greedy continuation (karpathy/llama2.c,
  // test_all.py).
  EXPECT_THAT(output_, HasSubstr("403 407 261 378 432 383 286 261"));

  // Without a length, generation ends at the model's last position; 1 of its 12 positions is taken.
  const std::string short_model = dir_.File("short_model");
  std::filesystem::copy(stories_, short_model);
  auto config = nlohmann::json::parse(ReadFile(short_model + "/config.json"));
  config["max_position_embeddings"] = 12;
  WriteFile(short_model + "/config.json", config.dump());
  const Strings generate = Words("generate --prompt-ids 1 --temperature 0 --model " + short_model);
  ASSERT_TRUE(Runs(generate));
  std::istringstream ids(output_.substr(output_.find("403 407")));
  EXPECT_EQ(std::distance(std::istream_iterator<int>(ids), std::istream_iterator<int>()), 11)
      << output_;
  ExpectFails(Joined(generate, {"--max-new-tokens", "12"}), 64,
              "--max-new-tokens 12 exceeds max_position_embeddings 12");

  // The teacher's distance to itself is near 0, because both sides compute the same numbers in
  // float32.
  EXPECT_NEAR(DistanceToTeacher({FromTeacher()}, {"--model", stories_}), 0.0, 1e-5);
  EXPECT_GT(DistanceToTeacher({FromTeacher()}), 1.0);
}

}  // namespace
}  // namespace taopd::testing
