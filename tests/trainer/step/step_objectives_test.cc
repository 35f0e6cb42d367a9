// Tests of a step for each objective, aggregation and support, on tiny models.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "common/config/yaml.h"
#include "tests/kernels/torch/threads_restored.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/step/tiny_training.h"
#include "trainer/step/loss/forward_backward.h"
#include "trainer/step/loss/head_targets.h"
#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/scored_batch.h"

namespace taopd::testing {
namespace {

// Compares the gradient of each parameter with autograd over dense log-softmaxes of both models.
TEST(StepObjectives, GradientsOfEverySupportEqualADenseComputation) {
  const ThreadsRestored threads(2);
  for (const char* kind : {"teacher", "student", "union", "full"}) {
    TrainConfig config = TinyConfig();
    config.rollout.n = 2;
    if (std::string(kind) == "full") {
      config.objective.name = "full";
    } else {
      EXPECT_OK(ApplyOverride(Concat("objective.support=", kind), DescribeSettings(config)));
    }
    const std::shared_ptr<Decoder> student = MakeTinyStudent();
    const std::shared_ptr<Decoder> teacher_model = MakeTinyTeacher();
    ASSERT_OK_AND_ASSIGN(auto rollout_engine, MakeRolloutEngine(config, student));
    LocalRolloutEngine rollouts(rollout_engine.get());
    const auto teacher = MakeEngineTeacher(teacher_model);
    PromptRecord a, b;
    a.prompt_ids = {5, 6, 7};
    b.prompt_ids = {9};
    const SupportOptions support = MakeSupportOptions(config, kTinyVocabulary);
    const auto batch =
        ScoredBatch::Start(&rollouts, MakeRolloutRequests(config, 0, {&a, &b}),
                           {.teacher = teacher.get(), .support = support, .name = "dense"});
    ASSERT_OK(batch->WaitScored(0, batch->size(), [] { return absl::OkStatus(); }));
    batch->WaitIdle();

    RowSums sums;
    ASSERT_OK(ForwardBackward(student.get(), MakeHeadOptions(config),
                              batch->Items(0, batch->size()), {0.1, 0.2, 0.3, 0.4}, &sums));
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : student->Parameters()) {
      gradients.push_back(parameter.grad().clone());
      parameter.mutable_grad() = at::Tensor();
    }
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int64_t i = 0; i < batch->size(); ++i) {
      const auto log_probs = [&](Decoder& model) {
        const at::Tensor hidden_NH = ForwardResponses(&model, {&batch->item(i)});
        return at::log_softmax(at::mm(hidden_NH, model.lm_head().t()).to(at::kDouble), 1);
      };
      const at::Tensor log_p_NV = log_probs(*student),
                       log_q_NV = log_probs(*teacher_model).detach();
      // The support by its definition: 1 for tokens that are compared.
      at::Tensor in_support_NV = at::zeros_like(log_q_NV);
      const auto add_top = [&](const at::Tensor& of) {
        in_support_NV.scatter_(1, std::get<1>(of.detach().topk(config.teacher.top_k, 1)), 1.0);
      };
      const std::string name = kind;
      if (name == "teacher" || name == "union") add_top(log_q_NV);
      if (name == "student" || name == "union") add_top(log_p_NV);
      if (name == "full") in_support_NV.fill_(1);
      const at::Tensor p_NV = log_p_NV.exp();
      at::Tensor row_N = (in_support_NV * p_NV * (log_p_NV - log_q_NV)).sum(1);
      if (name != "full") {
        const at::Tensor p_tail_N = ((1 - in_support_NV) * p_NV).sum(1);
        const at::Tensor q_tail_N = ((1 - in_support_NV) * log_q_NV.exp()).sum(1);
        row_N = row_N + p_tail_N * (p_tail_N.log() - q_tail_N.log());
      }
      loss = loss + 0.1 * static_cast<double>(i + 1) * row_N.sum();
    }
    loss.backward();
    EXPECT_NEAR(sums.weighted_loss, loss.item<double>(), 1e-5 * loss.item<double>()) << kind;
    const auto parameters = student->Parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      // Both are float32 backward passes of the same loss.
      EXPECT_TRUE(at::allclose(gradients[i], parameters[i].second.grad(), 1e-3, 1e-5))
          << kind << parameters[i].first;
    }
  }
}

// ---- Every objective goes downhill --------------------------------------------------------------

// The rollouts of one step with all scores of the teacher that any objective reads.
class ScoredStep {
 public:
  ScoredStep() : training_(TinySetting()) {
    const SupportOptions support = {.kind = SupportKind::kFullVocabulary,
                                    .teacher_top_k = 4,
                                    .teacher_entropy = true,
                                    .vocab_size = kTinyVocabulary};
    batch_ = training_.NextScored(support, "downhill");
    for (const ScoredRollout* item : Items()) {
      lengths_.push_back(static_cast<int64_t>(item->rollout.response_ids.size()));
    }
  }

  // Returns the loss of the batch under the current weights and leaves its gradients in the
  // parameters.
  double Loss(const Objective& objective, Aggregation aggregation) {
    for (auto& [name, parameter] : training_.student()->Parameters()) {
      parameter.mutable_grad().reset();
    }
    const HeadOptions head = {.objective = objective};
    RowSums sums;
    EXPECT_OK(ForwardBackward(training_.student().get(), head, Items(),
                              SequenceWeights(aggregation, lengths_), &sums));
    return sums.weighted_loss;
  }
  std::vector<at::Tensor> Gradients() {
    std::vector<at::Tensor> gradients;
    for (const auto& [name, parameter] : training_.student()->Parameters()) {
      gradients.push_back(parameter.grad().clone());
    }
    return gradients;
  }
  // Adds `step` times the direction to the weights.
  void Move(const std::vector<at::Tensor>& direction, double step) {
    const at::NoGradGuard no_grad;
    const auto parameters = training_.student()->Parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor parameter = parameters[i].second;
      parameter.add_(direction[i], step);
    }
  }

 private:
  std::vector<const ScoredRollout*> Items() const { return batch_->Items(0, batch_->size()); }

  TinyTraining training_;
  std::shared_ptr<ScoredBatch> batch_;
  std::vector<int64_t> lengths_;
};

double SquaredNorm(const std::vector<at::Tensor>& gradients) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) {
    sum += gradient.to(at::kDouble).square().sum().item<double>();
  }
  return sum;
}

// A short step against the gradient lowers the loss by the step times the squared norm. For
// score-function estimates the loss of given responses shows nothing; the full KL, which all of
// them estimate, must fall instead.
TEST(StepObjectives, AStepAgainstTheGradientGoesDownhill) {
  // The tolerance covers float32 losses and the curvature over a step that changes the loss by a
  // hundredth.
  constexpr double kTolerance = 0.1;
  ScoredStep step;
  const Objective full = *FindObjective("full");
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.traits & kNeedsAdvantage) continue;  // reward_step_test.cc
    const Objective objective = *FindObjective(info.name);
    const bool estimate = (info.traits & kScoreFunction) != 0;
    for (const Aggregation aggregation :
         {Aggregation::kTokenMean, Aggregation::kSeqMeanTokenMean, Aggregation::kSeqMeanTokenSum}) {
      const double full_before = estimate ? step.Loss(full, aggregation) : 0;
      const double before = step.Loss(objective, aggregation);
      const std::vector<at::Tensor> gradients = step.Gradients();
      const double slope = SquaredNorm(gradients);
      ASSERT_GT(slope, 0) << info.name;
      const double length = 0.01 * std::abs(estimate ? full_before : before) / slope;
      step.Move(gradients, -length);
      if (estimate) {
        const double after = step.Loss(full, aggregation);
        EXPECT_LT(after, full_before) << info.name;
      } else {
        const double after = step.Loss(objective, aggregation);
        EXPECT_NEAR((before - after) / (length * slope), 1, kTolerance) << info.name;
      }
      step.Move(gradients, length);
    }
  }
}

TEST(StepObjectives, EveryObjectiveUpdatesTheWeightsInEveryMiniBatch) {
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.traits & kNeedsAdvantage) continue;  // reward_step_test.cc
    TinySetting setting;
    setting.config.objective.name = std::string(info.name);
    TinyTraining training(setting);
    const StepResult result = training.Step(0, 1);
    EXPECT_EQ(result.num_skipped_updates, 0) << info.name;
    EXPECT_EQ(training.optimizer().num_updates(), 2) << info.name;
    EXPECT_FALSE(SameWeights(*training.student(), *MakeTinyStudent())) << info.name;
    EXPECT_TRUE(std::isfinite(ByName(result).at("loss/mean"))) << info.name;
  }
}

// ---- Metrics of objectives ----------------------------------------------------------------------

TEST(StepObjectives, FullVocabularyReportsTheTopKAndTheTruncationGap) {
  TinySetting setting;
  setting.config.objective.name = "full";
  std::map<std::string, double> metrics;
  const std::vector<double> losses = RunSteps(setting, 12, nullptr, &metrics);
  EXPECT_LT(losses.back(), losses.front());
  EXPECT_GT(metrics.at("policy/teacher_tail"), 0);  // of the top-k, not of the vocabulary
  EXPECT_NEAR(metrics.at("policy/full_kl"), metrics.at("loss/row_mean"), 1e-12);
  EXPECT_GT(metrics.at("policy/truncation_gap"), 0);
  EXPECT_GT(metrics.at("policy/overlap"), 0.1);
  EXPECT_EQ(metrics.at("policy/full_kl_rows"), metrics.at("rollout/tokens"));
}

TEST(StepObjectives, TheFullKlIsThatOfTheTermFullWithoutItsWeight) {
  TinySetting setting;
  setting.config.trainer.mini_batch_size = 6;
  std::map<std::string, double> alone, metrics;
  setting.config.objective.terms = {{"full", 1}};
  RunSteps(setting, 1, nullptr, &alone);
  using Terms = std::vector<ObjectiveTermConfig>;
  for (const Terms& terms : {Terms{{"full", 2}}, Terms{{"sampled_token", 0.5}, {"full", 2}}}) {
    setting.config.objective.terms = terms;
    RunSteps(setting, 1, nullptr, &metrics);
    for (const std::string name :
         {"policy/full_kl", "policy/truncation_gap", "policy/full_kl_rows"}) {
      ASSERT_EQ(metrics.count(name), 1u) << name;
      EXPECT_NEAR(metrics.at(name), alone.at(name), 1e-6) << name << ", " << terms.size();
    }
  }
}

TEST(StepObjectives, FullKlOnASampleOfRows) {
  TinySetting setting;
  setting.config.objective.full_kl_rows = 7;
  setting.config.trainer.micro_batch_tokens = 20;
  std::map<std::string, double> metrics;
  std::shared_ptr<Decoder> measured, plain;
  RunSteps(setting, 2, &measured, &metrics);
  EXPECT_EQ(metrics.at("policy/full_kl_rows"), 7);
  EXPECT_GT(metrics.at("policy/truncation_gap"), 0);
  EXPECT_GT(metrics.at("policy/full_kl"), metrics.at("policy/truncation_gap"));
  // Measuring changes nothing.
  setting.config.objective.full_kl_rows = 0;
  RunSteps(setting, 2, &plain, &metrics);
  EXPECT_EQ(metrics.count("policy/full_kl"), 0u);
  EXPECT_TRUE(SameWeights(*measured, *plain));

  // All rows of the first mini-batch of the first step are measured, before any update. With one
  // mini-batch, the bound is the loss.
  setting.config.objective.full_kl_rows = 1 << 20;
  setting.config.trainer.mini_batch_size = 6;
  RunSteps(setting, 1, nullptr, &metrics);
  EXPECT_EQ(metrics.at("policy/full_kl_rows"), metrics.at("rollout/tokens"));
  EXPECT_NEAR(metrics.at("policy/full_kl") - metrics.at("policy/truncation_gap"),
              metrics.at("loss/row_mean"), 1e-4);
  // A support of the whole vocabulary leaves no gap.
  setting.config.teacher.top_k = 40;
  RunSteps(setting, 1, nullptr, &metrics);
  EXPECT_NEAR(metrics.at("policy/truncation_gap"), 0, 1e-6);
}

TEST(StepObjectives, TermsAddUp) {
  const auto first_step = [](std::vector<ObjectiveTermConfig> terms) {
    TinySetting setting;
    setting.config.objective.terms = std::move(terms);
    setting.config.trainer.mini_batch_size = 6;
    std::map<std::string, double> metrics;
    RunSteps(setting, 1, nullptr, &metrics);
    return metrics;
  };
  const auto ta = first_step({{"ta_opd", 1}}), token = first_step({{"sampled_token", 1}});
  const auto both = first_step({{"ta_opd", 0.75}, {"sampled_token", 0.5}});
  EXPECT_EQ(ta.count("loss/term/ta_opd"), 0u);
  EXPECT_NEAR(both.at("loss/term/ta_opd"), 0.75 * ta.at("loss/row_mean"), 1e-6);
  EXPECT_NEAR(both.at("loss/term/sampled_token"), 0.5 * token.at("loss/row_mean"), 1e-6);
  EXPECT_NEAR(both.at("loss/mean"), 0.75 * ta.at("loss/mean") + 0.5 * token.at("loss/mean"), 1e-6);
  EXPECT_EQ(ta.at("loss/mean"), first_step({}).at("loss/mean"));
}

}  // namespace
}  // namespace taopd::testing
