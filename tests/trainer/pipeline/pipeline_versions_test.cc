// Tests of which weights generate and score a step that is generated ahead, and of the metrics that
// say how old they are.
#include <algorithm>
#include <cmath>
#include <regex>
#include <set>
#include <string>

#include "tests/trainer/pipeline/ahead_training.h"
#include "trainer/step/rollouts/step_rollouts.h"

namespace taopd::testing {
namespace {

// Returns K of "the weights after step s - N - K" in the help of trainer.async_steps.
int64_t LagInHelp() {
  TrainConfig config;
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    if (setting.path != "trainer.async_steps") continue;
    static const std::regex formula("the weights after step s - N(?: - (\\d+))?\\b");
    std::smatch match;
    EXPECT_TRUE(std::regex_search(setting.help, match, formula)) << setting.help;
    return match[1].matched ? std::stoll(match[1]) : 0;
  }
  ADD_FAILURE() << "trainer.async_steps is no setting";
  return -1;
}

// Every step is generated once more, by a decoder that has the weights or the adapters of the
// version that the help of the setting names.
TEST(RolloutPipeline, EveryStepIsGeneratedByExactlyItsVersion) {
  for (const auto& [async_steps, lora_rank] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 0}, {2, 0}, {4, 0}, {1, 4}, {2, 4}}) {
    AheadTraining run(Ahead(async_steps, lora_rank));
    ASSERT_OK(run.Start());
    std::vector<std::vector<at::Tensor>> versions = {CopyOf(run.student())};
    std::vector<StepResult> results;
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_OK_AND_ASSIGN(results.emplace_back(), run.Step());
      versions.push_back(CopyOf(run.student()));
    }
    const std::shared_ptr<Decoder> earlier = MakeTinyStudent("float32", lora_rank);
    ASSERT_OK_AND_ASSIGN(const auto engine, MakeRolloutEngine(*run.context().config, earlier));
    LocalRolloutEngine rollouts(engine.get());
    StepContext alone = run.context();
    alone.rollout_engine = &rollouts;
    for (int64_t step = 0; step < kSteps; ++step) {
      // The help counts steps from 1.
      const int64_t version = std::max<int64_t>(0, (step + 1) - async_steps - LagInHelp());
      SCOPED_TRACE(Concat("async_steps ", async_steps, ", step ", step));
      EXPECT_EQ(ByName(results[step]).at("policy/staleness"), step - version);
      {
        const at::NoGradGuard no_grad;
        const auto parameters = earlier->TrainedParameters();
        for (size_t i = 0; i < parameters.size(); ++i)
          at::Tensor(parameters[i].second).copy_(versions[version][i]);
      }
      std::vector<const PromptRecord*> prompts;
      for (size_t i = 0; i < results[step].prompts.size(); i += 3)
        prompts.push_back(results[step].prompts[i]);
      const auto batch = StartRollouts(alone, step, prompts);
      batch->WaitAllGenerated();
      batch->WaitIdle();
      for (size_t i = 0; i < results[step].rollouts.size(); ++i) {
        const Rollout& expected = batch->item(static_cast<int64_t>(i)).rollout;
        EXPECT_EQ(results[step].rollouts[i].response_ids, expected.response_ids) << i;
        EXPECT_EQ(results[step].rollouts[i].behavior_log_probs, expected.behavior_log_probs) << i;
        EXPECT_EQ(results[step].rollouts[i].policy_version, version) << i;
      }
    }
  }
}

TEST(RolloutPipeline, ATeacherThatFollowsTheStudentScoresWithTheVersionThatGenerates) {
  for (const int64_t async_steps : {1, 2}) {
    AheadTraining run(Ahead(async_steps), /*teacher_follows=*/true);
    ASSERT_OK(run.Start());
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_OK(run.Step());
      run.SaveAndRestore();
      // A checkpoint has all scores, because no later version of the teacher can give them.
      EXPECT_EQ(run.num_scored(), run.num_stored() * 18) << step;
    }
    for (int64_t step = 0; step < kSteps; ++step) {
      EXPECT_EQ(run.following().versions_of(Concat("step-", step + 1, "-")),
                (std::set<int64_t>{std::max<int64_t>(0, step - async_steps)}))
          << "async_steps " << async_steps << ", step " << step;
    }
    Whole whole(Ahead(async_steps));
    ExpectSame(run, whole.run);
  }
}

// Returns the log-probs of the response's tokens under the decoder's weights, from its logits in
// float64.
std::vector<double> LogProbsOf(Decoder* decoder, const Rollout& rollout) {
  const at::NoGradGuard no_grad;
  std::vector<int32_t> ids = rollout.prompt_ids;
  ids.insert(ids.end(), rollout.response_ids.begin(), rollout.response_ids.end());
  const at::Tensor hidden_TH = decoder->Forward(PackedBatch::FromSequences({ids}, at::kCPU));
  const at::Tensor log_probs_TV = at::log_softmax(
      at::matmul(hidden_TH.to(at::kDouble), decoder->lm_head().to(at::kDouble).t()), -1);
  std::vector<double> log_probs;
  for (size_t i = 0; i < rollout.response_ids.size(); ++i) {
    const auto row = static_cast<int64_t>(rollout.prompt_ids.size() + i) - 1;
    log_probs.push_back(log_probs_TV[row][rollout.response_ids[i]].item<double>());
  }
  return log_probs;
}

// With one mini-batch per step all rows meet the weights after the step before.
TEST(RolloutPipeline, TheMetricsOfStalenessAreThoseOfADirectComputation) {
  // The step's logits are float32 sums in another order.
  constexpr double kSumOrder = 2e-5;
  TinySetting setting = Ahead(2);
  setting.config.trainer.mini_batch_size = setting.config.data.train_batch_size;
  AheadTraining run(setting);
  ASSERT_OK(run.Start());
  const std::shared_ptr<Decoder> before = MakeTinyStudent();
  for (int64_t step = 0; step < kSteps; ++step) {
    const std::vector<at::Tensor> weights = CopyOf(run.student());
    ASSERT_OK_AND_ASSIGN(const StepResult result, run.Step());
    {
      const at::NoGradGuard no_grad;
      const auto parameters = before->Parameters();
      for (size_t i = 0; i < parameters.size(); ++i)
        at::Tensor(parameters[i].second).copy_(weights[i]);
    }
    double sum = 0, square_sum = 0, gap = 0, count = 0;
    for (const Rollout& rollout : result.rollouts) {
      const std::vector<double> now = LogProbsOf(before.get(), rollout);
      for (size_t i = 0; i < now.size(); ++i) {
        const double rho = std::exp(now[i] - rollout.behavior_log_probs[i]);
        sum += rho;
        square_sum += rho * rho;
        gap += rollout.behavior_log_probs[i] - now[i];
        ++count;
      }
    }
    const auto metrics = ByName(result);
    EXPECT_NEAR(metrics.at("policy/effective_sample_size"), sum * sum / (count * square_sum),
                kSumOrder)
        << step;
    EXPECT_NEAR(metrics.at("policy/kl_behavior"), gap / count, kSumOrder) << step;
    EXPECT_EQ(metrics.at("policy/staleness"), std::min<int64_t>(2, step));
    if (step < 2) continue;
    // The weights have moved by more than the tolerance.
    EXPECT_LT(metrics.at("policy/effective_sample_size"), 1 - 10 * kSumOrder) << step;
    EXPECT_GT(std::abs(metrics.at("policy/kl_behavior")), 10 * kSumOrder) << step;
  }
}

}  // namespace
}  // namespace taopd::testing
