// Which charts the page has.
#include <absl/strings/ascii.h>

#include <algorithm>
#include <set>

#include "trainer/report/charts/chart.h"

namespace taopd {

namespace {

const std::vector<ChartSpec>& FixedCharts() {
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
      {"overlap",
       "Top-k overlap",
       "Share of the teacher's most probable tokens that are also among the student's.",
       {{"policy/overlap", "", "", ""}},
       share,
       ChartSpec::Style::kNoisy,
       /*optional=*/true},
      {"full-kl",
       "Full-vocabulary KL",
       "To the teacher, on the measured positions, and what of it the top-k and their tail leave "
       "out.",
       {{"policy/full_kl", "full KL", "", ""}, {"policy/truncation_gap", "truncation gap", "", ""}},
       log,
       ChartSpec::Style::kNoisy,
       /*optional=*/true},
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

// One for each term of a combined objective.
std::vector<ChartSpec> TermCharts(const std::vector<RunRecord>& runs) {
  const std::string prefix = "loss/term/";
  std::set<std::string> terms;
  for (const RunRecord& run : runs) {
    for (const auto& [metric, series] : run.series) {
      if (metric.rfind(prefix, 0) != 0) continue;
      // Names of objectives; whatever else a damaged file holds does not belong into the page.
      const std::string term = metric.substr(prefix.size());
      const bool is_name = std::all_of(term.begin(), term.end(),
                                       [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
      if (is_name) terms.insert(term);
    }
  }
  std::vector<ChartSpec> charts;
  for (const std::string& term : terms) {
    std::string id = "term-" + term;
    std::replace(id.begin(), id.end(), '_', '-');
    charts.push_back({id,
                      "Loss term " + term,
                      "Times its weight, mean over the step's response tokens.",
                      {{prefix + term, "", "", ""}},
                      ScaleOptions()});
  }
  return charts;
}

}  // namespace

std::vector<ChartSpec> ReportCharts(const std::vector<RunRecord>& runs) {
  std::vector<ChartSpec> charts = FixedCharts();
  const std::vector<ChartSpec> terms = TermCharts(runs);
  charts.insert(charts.begin() + 1, terms.begin(), terms.end());
  return charts;
}

}  // namespace taopd
