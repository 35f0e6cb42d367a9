#include "trainer/eval/accuracy_report.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "common/base/random.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// The scores that the rows of the table average: one number per problem.
struct ProblemScores {
  std::vector<double> avg;
  std::vector<double> majority;
};

using OutcomeRows = std::vector<const std::vector<ResponseOutcome>*>;

// Returns pass@k for k = 1, 2, 4, ... and n. `num_correct` is that of each row.
std::vector<std::pair<int64_t, double>> PassAtEachK(const OutcomeRows& rows,
                                                    const std::vector<int64_t>& num_correct,
                                                    int64_t n) {
  std::vector<int64_t> ks;
  for (int64_t k = 1; k < n; k *= 2) ks.push_back(k);
  ks.push_back(n);
  std::vector<std::pair<int64_t, double>> pass_at_k;
  for (const int64_t k : ks) {
    std::vector<double> values;
    for (size_t p = 0; p < rows.size(); ++p) {
      values.push_back(PassAtK(static_cast<int64_t>(rows[p]->size()), num_correct[p], k));
    }
    pass_at_k.emplace_back(k, Mean(values));
  }
  return pass_at_k;
}

SourceScores Summarize(const std::string& name, const OutcomeRows& rows, uint64_t seed,
                       bool has_answers, ProblemScores* scores) {
  SourceScores result;
  result.source = name;
  result.num_problems = static_cast<int64_t>(rows.size());
  size_t least = std::numeric_limits<size_t>::max(), most = 0;
  int64_t num_responses = 0, num_truncated = 0, num_without_answer = 0, num_tokens = 0,
          num_counted = 0;
  std::vector<int64_t> num_correct;
  for (const auto* row : rows) {
    least = std::min(least, row->size());
    most = std::max(most, row->size());
    int64_t correct = 0;
    for (const ResponseOutcome& outcome : *row) {
      correct += outcome.correct ? 1 : 0;
      num_truncated += outcome.truncated ? 1 : 0;
      num_without_answer += outcome.extracted.empty() ? 1 : 0;
      ++num_responses;
      if (outcome.num_tokens >= 0) {
        num_tokens += outcome.num_tokens;
        ++num_counted;
      }
    }
    num_correct.push_back(correct);
    scores->avg.push_back(static_cast<double>(correct) / static_cast<double>(row->size()));
    scores->majority.push_back(MajorityIsCorrect(*row) ? 1.0 : 0.0);
  }
  result.n = least == most ? static_cast<int64_t>(least) : 0;
  result.avg = Mean(scores->avg);
  result.avg_interval = BootstrapInterval({scores->avg}, DeriveSeed(seed, "avg " + name));
  result.majority = Mean(scores->majority);
  result.majority_interval =
      BootstrapInterval({scores->majority}, DeriveSeed(seed, "majority " + name));
  result.pass_at_k = PassAtEachK(rows, num_correct, static_cast<int64_t>(least));
  result.truncated_share = static_cast<double>(num_truncated) / static_cast<double>(num_responses);
  result.no_answer_share =
      static_cast<double>(num_without_answer) / static_cast<double>(num_responses);
  result.mean_tokens = num_counted > 0
                           ? static_cast<double>(num_tokens) / static_cast<double>(num_counted)
                           : std::numeric_limits<double>::quiet_NaN();
  if (!has_answers) {
    constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();
    result.majority = result.no_answer_share = kNotMeasured;
    result.majority_interval = {kNotMeasured, kNotMeasured};
  }
  return result;
}

Json ScoresJson(const SourceScores& scores) {
  Json json = {{"source", scores.source},
               {"num_problems", scores.num_problems},
               {"n", scores.n},
               {"accuracy", scores.avg},
               {"accuracy_low", scores.avg_interval.low},
               {"accuracy_high", scores.avg_interval.high}};
  for (const auto& [k, value] : scores.pass_at_k) json["pass_at_k"][std::to_string(k)] = value;
  json["majority"] = scores.majority;
  json["majority_low"] = scores.majority_interval.low;
  json["majority_high"] = scores.majority_interval.high;
  json["truncated_share"] = scores.truncated_share;
  json["no_answer_share"] = scores.no_answer_share;
  json["response_length_mean"] = scores.mean_tokens;
  return json;
}

std::string Row(const SourceScores& scores, size_t width) {
  return absl::StrFormat("  %-*s %8d %4s %7.2f %7.2f to %6.2f %7.2f %7.2f %9.2f %9.2f %8.1f\n",
                         static_cast<int>(width), scores.source, scores.num_problems,
                         scores.n > 0 ? std::to_string(scores.n) : "-", 100 * scores.avg,
                         100 * scores.avg_interval.low, 100 * scores.avg_interval.high,
                         100 * scores.pass_at_k.back().second, 100 * scores.majority,
                         100 * scores.truncated_share, 100 * scores.no_answer_share,
                         scores.mean_tokens);
}

}  // namespace

AccuracyReport SummarizeAccuracy(const std::vector<PromptRecord>& problems,
                                 const std::vector<std::vector<ResponseOutcome>>& outcomes,
                                 uint64_t seed, bool has_answers) {
  std::map<std::string, OutcomeRows> by_source;
  OutcomeRows all;
  for (size_t p = 0; p < problems.size(); ++p) {
    by_source[problems[p].source].push_back(&outcomes[p]);
    all.push_back(&outcomes[p]);
  }
  AccuracyReport report;
  std::vector<std::vector<double>> strata;
  for (const auto& [source, rows] : by_source) {
    ProblemScores scores;
    report.sources.push_back(Summarize(source, rows, seed, has_answers, &scores));
    strata.push_back(std::move(scores.avg));
    report.macro_avg += report.sources.back().avg / static_cast<double>(by_source.size());
  }
  ProblemScores scores;
  report.all = Summarize("all", all, seed, has_answers, &scores);
  report.macro_interval = BootstrapInterval(strata, DeriveSeed(seed, "macro"));
  return report;
}

Metrics AccuracyMetrics(const AccuracyReport& report) {
  const SourceScores& all = report.all;
  Metrics metrics = {{"eval/accuracy", all.avg},
                     {"eval/accuracy_low", all.avg_interval.low},
                     {"eval/accuracy_high", all.avg_interval.high},
                     {"eval/n", static_cast<double>(all.num_problems)},
                     {"eval/response_length_mean", all.mean_tokens},
                     {"eval/truncated_share", all.truncated_share}};
  if (!std::isnan(all.no_answer_share))
    metrics.emplace_back("eval/no_answer_share", all.no_answer_share);
  if (!all.pass_at_k.empty() && all.pass_at_k.back().first > 1) {
    metrics.emplace_back(Concat("eval/pass_at_", all.pass_at_k.back().first),
                         all.pass_at_k.back().second);
    if (!std::isnan(all.majority)) metrics.emplace_back("eval/majority", all.majority);
  }
  if (report.sources.size() > 1) {
    metrics.emplace_back("eval/macro_accuracy", report.macro_avg);
    for (const SourceScores& source : report.sources)
      metrics.emplace_back("eval/accuracy/" + source.source, source.avg);
  }
  return metrics;
}

Json AccuracyReportJson(const AccuracyReport& report) {
  Json json = ScoresJson(report.all);
  json.erase("source");
  json["n"] = report.all.num_problems;  // the sample size of the interval, as in the metrics
  json["responses_per_problem"] = report.all.n;
  json.erase("num_problems");
  json["macro_accuracy"] = report.macro_avg;
  json["macro_accuracy_low"] = report.macro_interval.low;
  json["macro_accuracy_high"] = report.macro_interval.high;
  json["sources"] = Json::array();
  for (const SourceScores& source : report.sources) json["sources"].push_back(ScoresJson(source));
  return json;
}

std::string AccuracyTable(const AccuracyReport& report) {
  size_t width = 6;
  for (const SourceScores& source : report.sources) width = std::max(width, source.source.size());
  std::string text =
      "  source" + std::string(width - 6, ' ') +
      "  problems    n   Avg@n    95 % interval  pass@n   maj@n truncated no answer   tokens\n";
  for (const SourceScores& source : report.sources) text += Row(source, width);
  if (report.sources.size() > 1) {
    text += Row(report.all, width);
    text += "  macro" + std::string(width - 5, ' ') +
            absl::StrFormat(" %8s %4s %7.2f %7.2f to %6.2f\n", "", "", 100 * report.macro_avg,
                            100 * report.macro_interval.low, 100 * report.macro_interval.high);
  }
  return text;
}

}  // namespace taopd
