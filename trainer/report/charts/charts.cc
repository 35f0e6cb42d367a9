// The list of the page's charts.
#include <absl/strings/ascii.h>

#include <algorithm>
#include <set>

#include "trainer/report/charts/chart.h"

namespace taopd::report {
namespace {

const ScaleOptions kLog = {.allow_log = true};
const ScaleOptions kShare = {.style = NumberStyle::kPercent, .floor = 0, .ceiling = 1};

// Returns the quantity of a chart that has only one, which needs no label.
std::vector<ChartQuantity> Only(const std::string& metric) { return {{.metric = metric}}; }

ChartSpec LossChart() {
  return {.id = "loss",
          .title = "Loss",
          .hint = "Mean over the step's response tokens.",
          .quantities = Only("loss/mean"),
          .scale = kLog};
}

// Charts that show whether the student learns.
std::vector<ChartSpec> LearningCharts() {
  return {
      {.id = "tail",
       .title = "Tail probability",
       .hint = "Probability outside of the support.",
       .quantities = {{.metric = "policy/student_tail", .label = "student"},
                      {.metric = "policy/teacher_tail", .label = "teacher"}},
       .scale = kLog},
      {.id = "eval-accuracy",
       .title = "Evaluation accuracy",
       .hint = "Share of correct responses to held-out problems, with its interval.",
       .quantities = Only("eval/accuracy"),
       .scale = kShare,
       .style = ChartSpec::Style::kPoints},
      {.id = "eval-kl",
       .title = "KL to the teacher",
       .hint = "Measured at evaluations, nats per token.",
       .quantities = Only("eval/kl_to_teacher"),
       .scale = kLog,
       .style = ChartSpec::Style::kPoints,
       .optional = true},
      {.id = "eval-loss",
       .title = "Validation loss",
       .hint = "Mean over the response tokens of data.val, in supervised training.",
       .quantities = Only("eval/loss"),
       .scale = kLog,
       .style = ChartSpec::Style::kPoints,
       .optional = true},
      {.id = "rollout-accuracy",
       .title = "Rollout accuracy",
       .hint = "Share of the step's rollouts that are correct.",
       .quantities = Only("rollout/accuracy"),
       .scale = kShare,
       .optional = true},
  };
}

// Charts that show how the student's policy changes.
std::vector<ChartSpec> PolicyCharts() {
  return {
      {.id = "entropy",
       .title = "Entropy",
       .hint = "Entropy of the student's next-token distribution, nats.",
       .quantities = Only("policy/entropy")},
      {.id = "overlap",
       .title = "Top-k overlap",
       .hint = "Share of the teacher's most probable tokens that are also among the student's.",
       .quantities = Only("policy/overlap"),
       .scale = kShare,
       .optional = true},
      {.id = "full-kl",
       .title = "Full-vocabulary KL",
       .hint = "KL to the teacher on the measured positions, and the part of it that the top-k "
               "and their tail leave out.",
       .quantities = {{.metric = "policy/full_kl", .label = "full KL"},
                      {.metric = "policy/truncation_gap", .label = "truncation gap"}},
       .scale = kLog,
       .optional = true},
  };
}

// Charts of the steps themselves.
std::vector<ChartSpec> StepCharts() {
  return {
      {.id = "length",
       .title = "Response length",
       .hint = "Mean over the step's rollouts, tokens.",
       .quantities = Only("rollout/response_length_mean")},
      {.id = "truncated",
       .title = "Truncated responses",
       .hint = "Share of rollouts stopped by the length limit.",
       .quantities = Only("rollout/truncated_share"),
       .scale = kShare,
       .optional = true},
      {.id = "throughput",
       .title = "Throughput",
       .hint = "Tokens per second, all phases of a step.",
       .quantities = Only("time/tokens_per_s")},
      {.id = "grad-norm",
       .title = "Gradient norm",
       .hint = "Global L2 norm before clipping.",
       .quantities = Only("loss/grad_norm"),
       .scale = kLog},
      {.id = "learning-rate",
       .title = "Learning rate",
       .hint = "Learning rate of the step.",
       .quantities = Only("optim/lr"),
       .style = ChartSpec::Style::kExact},
  };
}

// Returns one chart for each term of a combined objective.
std::vector<ChartSpec> TermCharts(const std::vector<RunRecord>& runs) {
  const std::string prefix = "loss/term/";
  std::set<std::string> terms;
  for (const RunRecord& run : runs) {
    for (const auto& [metric, series] : run.series) {
      if (metric.rfind(prefix, 0) != 0) continue;
      // A damaged file may hold anything, so only names of objectives get a chart.
      const std::string term = metric.substr(prefix.size());
      const bool is_name =
          std::ranges::all_of(term, [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
      if (is_name) terms.insert(term);
    }
  }
  std::vector<ChartSpec> charts;
  for (const std::string& term : terms) {
    std::string id = "term-" + term;
    std::ranges::replace(id, '_', '-');
    charts.push_back({.id = id,
                      .title = "Loss term " + term,
                      .hint = "Mean over the step's response tokens, times its weight.",
                      .quantities = Only(prefix + term)});
  }
  return charts;
}

// Returns whether the runs trained without rollouts, which most charts show.
bool AreSupervised(const std::vector<RunRecord>& runs) {
  bool has_loss = false;
  for (const RunRecord& run : runs) {
    if (run.Find("rollout/response_length_mean") != nullptr) return false;
    has_loss |= run.Find("loss/mean") != nullptr;
  }
  return has_loss;
}

}  // namespace

std::vector<ChartSpec> ReportCharts(const std::vector<RunRecord>& runs) {
  std::vector<ChartSpec> charts = {LossChart()};
  for (const auto& group : {TermCharts(runs), LearningCharts(), PolicyCharts(), StepCharts()}) {
    charts.insert(charts.end(), group.begin(), group.end());
  }
  if (AreSupervised(runs)) {
    for (ChartSpec& chart : charts) chart.optional = true;
  }
  return charts;
}

}  // namespace taopd::report
