// Summarizes the outcomes of an evaluation in a table: one row per data set and one for all.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/metrics/sink.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/statistics.h"

namespace taopd {

// One row of the table. Shares are in [0, 1].
struct SourceScores {
  std::string source;  // the name of the data set; "all" in the last row
  int64_t num_problems = 0;
  int64_t n = 0;          // responses per problem; 0 in "all" if the sources differ
  double avg = 0;         // Avg@n: the mean over the problems of the share of correct responses
  Interval avg_interval;  // 95 %, bootstrap over the problems
  // pass@k for k = 1, 2, 4, ... and n.
  std::vector<std::pair<int64_t, double>> pass_at_k;
  double majority = 0;  // Majority@n; NaN without answers
  Interval majority_interval;
  double truncated_share = 0;
  // The share of responses in which the grader found no answer; NaN without answers.
  double no_answer_share = 0;
  double mean_tokens = 0;  // NaN if the server does not report the number of tokens
};

struct AccuracyReport {
  std::vector<SourceScores> sources;  // sorted by name
  SourceScores all;                   // each problem has the same weight
  double macro_avg = 0;               // mean over the sources of their avg
  Interval macro_interval;
};

// `outcomes[p]` holds the outcomes of the responses to problems[p]. `seed` determines the resamples
// for the intervals. `has_answers` is false if a server judges the responses, because it names no
// answers. REQUIRES: each problem has at least one outcome.
AccuracyReport SummarizeAccuracy(const std::vector<PromptRecord>& problems,
                                 const std::vector<std::vector<ResponseOutcome>>& outcomes,
                                 uint64_t seed, bool has_answers = true);

// Returns the metrics of a report:
//   eval/accuracy                            and its 95 % interval, eval/accuracy_low and
//                                            eval/accuracy_high
//   eval/n                                   the number of problems
//   eval/response_length_mean                in tokens
//   eval/truncated_share
//   eval/no_answer_share                     if there are answers
//   eval/pass_at_N                           if a problem has several responses
//   eval/majority                            if there are answers and several responses
//   eval/macro_accuracy, eval/accuracy/NAME  if there are several sources
Metrics AccuracyMetrics(const AccuracyReport& report);
nlohmann::ordered_json AccuracyReportJson(const AccuracyReport& report);
// Returns the table for the terminal, with shares in per cent.
std::string AccuracyTable(const AccuracyReport& report);

}  // namespace taopd
