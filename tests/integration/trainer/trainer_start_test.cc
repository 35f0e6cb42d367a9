// Tests of what a run refuses at its start, before it contacts the teacher, and of what it logs
// about itself.
#include "tests/integration/trainer/trainer_fixture.h"

namespace taopd::testing {
namespace {

using ::testing::HasSubstr;

TEST_F(TrainerTest, AMetricThatNoEvaluationProducesIsRefused) {
  ExpectTrainFails({kNobody, "trainer.best_metric=eval/kl_to_teachr"}, 64,
                   "trainer.best_metric = eval/kl_to_teachr: is not among");
  EXPECT_THAT(output_, HasSubstr("did you mean \"eval/kl_to_teacher\"?"));
  // The metric belongs to another measure, so the early stop would never be reached.
  ExpectTrainFails(
      {kNobody, "trainer.best_metric=eval/accuracy", "trainer.early_stop_evaluations=3"}, 64,
      "trainer.best_metric = eval/accuracy: is not among");
  ExpectTrainFails({kNobody, "trainer.best_metric=eval/kl_to_teacher", "eval.measure=none"}, 64,
                   "nothing is evaluated");
  EXPECT_FALSE(Exists("run/metrics.jsonl"));
}

TEST_F(TrainerTest, TruncatedSamplingIsRefusedByPlanAndTrain) {
  ExpectTrainFails({kNobody, "objective.name=sc_ta_opd", "rollout.top_p=0.9"}, 64,
                   "rollout.top_p = 0.9: the sampled distribution is truncated");
  ExpectFails(PlanArguments({"rollout.top_k=5", "objective.name=sampled_token_k2"}), 64,
              "rollout.top_k = 5: the sampled distribution is truncated");
}

// A checkpoint is saved before the validation of its step, which a resumed run makes up for.
TEST_F(TrainerTest, SftSavesBeforeItValidates) {
  const auto sft = [&](int64_t steps, const Strings& flags) {
    return SftArguments(
        {RunDir("sft"), FileSetting("data.val", "pairs.jsonl"),
         Concat("trainer.total_steps=", steps), "trainer.save_every=1", "trainer.eval_every=1"},
        flags);
  };
  ASSERT_TRUE(Runs(sft(2, {})));
  const std::string metrics = ReadFile(dir_.File("sft/metrics.jsonl"));
  const size_t last = metrics.rfind("{", metrics.rfind("eval/loss"));
  ASSERT_NE(last, std::string::npos);
  const auto state = ReadJson("sft/checkpoints/step-000002/state.json");
  EXPECT_LE(state.at("metrics_bytes").get<size_t>(), last);
  // The process seems to have died while it validated.
  WriteFile(dir_.File("sft/metrics.jsonl"), metrics.substr(0, last));
  ASSERT_TRUE(Runs(sft(3, {"--resume"})));
  EXPECT_EQ(Evaluations("sft").size(), 3U);
}

}  // namespace
}  // namespace taopd::testing
