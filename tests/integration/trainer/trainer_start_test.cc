// Tests of what a run refuses at its start, before it contacts the teacher, and of what it logs
// about itself.
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

// Nobody listens there, so a run that got as far as the teacher would wait for it.
constexpr char kNobody[] = "grpc://127.0.0.1:1";

TEST_F(TrainerTest, AMetricThatNoEvaluationProducesIsRefused) {
  std::string output;
  EXPECT_EQ(Train(kNobody, &output, {"trainer.best_metric=eval/kl_to_teachr"}), 64) << output;
  EXPECT_THAT(output, HasSubstr("trainer.best_metric = eval/kl_to_teachr: is not among"));
  EXPECT_THAT(output, HasSubstr("did you mean \"eval/kl_to_teacher\"?"));
  // The metric belongs to another measure, so the early stop would never be reached.
  EXPECT_EQ(Train(kNobody, &output,
                  {"trainer.best_metric=eval/accuracy", "trainer.early_stop_evaluations=3"}),
            64)
      << output;
  EXPECT_THAT(output, HasSubstr("trainer.best_metric = eval/accuracy: is not among"));
  EXPECT_EQ(
      Train(kNobody, &output, {"trainer.best_metric=eval/kl_to_teacher", "eval.measure=none"}), 64)
      << output;
  EXPECT_THAT(output, HasSubstr("nothing is evaluated"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/metrics.jsonl")));
}

TEST_F(TrainerTest, TruncatedSamplingIsRefusedByPlanAndTrain) {
  std::string output;
  EXPECT_EQ(Train(kNobody, &output, {"objective.name=sc_ta_opd", "rollout.top_p=0.9"}), 64);
  EXPECT_THAT(output, HasSubstr("rollout.top_p = 0.9: the sampled distribution is truncated"));
  EXPECT_EQ(Run({"plan", "--config", dir_.File("train.yaml"), "--set", "rollout.top_k=5", "--set",
                 "objective.name=sampled_token_k2"},
                &output),
            64);
  EXPECT_THAT(output, HasSubstr("rollout.top_k = 5: the sampled distribution is truncated"));
}

// A checkpoint is saved before the validation of its step, which a resumed run makes up for.
TEST_F(TrainerTest, SftSavesBeforeItValidates) {
  const auto sft = [&](int64_t steps, const std::vector<std::string>& flags, std::string* output) {
    std::vector<std::string> arguments = {"sft", "--config", dir_.File("sft.yaml")};
    for (const std::string& setting :
         {Concat("run.dir=", dir_.File("sft")), Concat("data.val=[", dir_.File("pairs.jsonl"), "]"),
          Concat("trainer.total_steps=", steps), std::string("trainer.save_every=1"),
          std::string("trainer.eval_every=1")}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return Run(arguments, output);
  };
  std::string output;
  ASSERT_EQ(sft(2, {}, &output), 0) << output;
  const std::string metrics = ReadFile(dir_.File("sft/metrics.jsonl"));
  const size_t last = metrics.rfind("{", metrics.rfind("eval/loss"));
  ASSERT_NE(last, std::string::npos);
  const auto state =
      nlohmann::json::parse(ReadFile(dir_.File("sft/checkpoints/step-000002/state.json")));
  EXPECT_LE(state.at("metrics_bytes").get<size_t>(), last);
  // The process seems to have died while it validated.
  WriteFile(dir_.File("sft/metrics.jsonl"), metrics.substr(0, last));
  ASSERT_EQ(sft(3, {"--resume"}, &output), 0) << output;
  const std::string resumed = ReadFile(dir_.File("sft/metrics.jsonl"));
  size_t num_validations = 0;
  for (size_t at = 0; (at = resumed.find("eval/loss", at)) != std::string::npos; ++at) {
    ++num_validations;
  }
  EXPECT_EQ(num_validations, 3U);
}

}  // namespace
}  // namespace taopd::testing
