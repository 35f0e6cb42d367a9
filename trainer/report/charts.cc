// Which charts the page has.
#include "trainer/report/chart.h"

namespace taopd {

const std::vector<ChartSpec>& ReportCharts() {
  const ScaleOptions plain;
  const ScaleOptions log = {.allow_log = true};
  const ScaleOptions share = {.style = NumberStyle::kPercent, .floor = 0, .ceiling = 1};
  static const std::vector<ChartSpec> charts = {
      {"loss", "Loss", "Mean over the step's response tokens.", {{"loss/mean", "", "", ""}}, log},
      {"tail",
       "Tail probability",
       "Probability outside of the support.",
       {{"policy/student_tail", "student", "", ""}, {"policy/teacher_tail", "teacher", "", ""}},
       log},
      {"eval-accuracy",
       "Evaluation accuracy",
       "With its confidence interval.",
       {{"eval/accuracy", "", "eval/accuracy_low", "eval/accuracy_high"}},
       share,
       ChartSpec::Style::kPoints},
      {"eval-kl",
       "KL to the teacher",
       "Measured at evaluations, nats per token.",
       {{"eval/kl_to_teacher", "", "", ""}},
       log,
       ChartSpec::Style::kPoints,
       /*optional=*/true},
      {"rollout-accuracy",
       "Rollout accuracy",
       "Share of the step's rollouts that are correct.",
       {{"rollout/accuracy", "", "", ""}},
       share,
       ChartSpec::Style::kNoisy,
       /*optional=*/true},
      {"entropy",
       "Entropy",
       "Of the student's next-token distribution, nats.",
       {{"policy/entropy", "", "", ""}},
       plain},
      {"length",
       "Response length",
       "Mean over the step's rollouts, tokens.",
       {{"rollout/response_length_mean", "", "", ""}},
       plain},
      {"truncated",
       "Truncated responses",
       "Share of rollouts stopped by the length limit.",
       {{"rollout/truncated_share", "", "", ""}},
       share,
       ChartSpec::Style::kNoisy,
       /*optional=*/true},
      {"throughput",
       "Throughput",
       "Tokens per second, all phases of a step.",
       {{"time/tokens_per_s", "", "", ""}},
       plain},
      {"grad-norm",
       "Gradient norm",
       "Global L2 norm before clipping.",
       {{"loss/grad_norm", "", "", ""}},
       log},
      {"learning-rate",
       "Learning rate",
       "Of the step.",
       {{"optim/lr", "", "", ""}},
       plain,
       ChartSpec::Style::kExact},
  };
  return charts;
}

}  // namespace taopd
