// Accuracy of generated answers, the same inside `train` and in `eval`: responses from a
// ResponseSource, graded, and summed up by data set. Knows no LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/metrics/sink.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/journal.h"
#include "trainer/eval/response_source.h"
#include "trainer/eval/statistics.h"
#include "trainer/grading/grader.h"
#include "trainer/train_config.h"

namespace taopd {

struct EvalSample {
  std::string id;
  std::string prompt;
  std::string response;
  std::string answer;
  bool correct = false;
};

// One row of the table. Shares are in [0, 1].
struct SourceScores {
  std::string source;  // "all" for the last row
  int64_t num_problems = 0;
  int64_t n = 0;          // responses per problem; 0 in "all" where sources differ
  double avg = 0;         // Avg@n: mean over problems of their share of right responses
  Interval avg_interval;  // 95 %, bootstrap over problems
  std::vector<std::pair<int64_t, double>> pass_at_k;  // k = 1, 2, 4, ... and n
  double majority = 0;                                // Majority@n
  Interval majority_interval;
  double truncated_share = 0;
  double no_answer_share = 0;  // responses in which the grader found nothing to compare
  double mean_tokens = 0;      // NaN: no server said
};

struct AccuracyReport {
  std::vector<SourceScores> sources;  // by name
  SourceScores all;                   // every problem counts the same
  double macro_avg = 0;               // mean over the sources
  Interval macro_interval;
};

struct EvalResult {
  // eval/accuracy, eval/accuracy_low, eval/accuracy_high (95 %), eval/n (problems),
  // eval/response_length_mean, eval/truncated_share, and with several responses eval/pass_at_N and
  // eval/majority, with several sources eval/macro_accuracy and eval/accuracy/SOURCE; or
  // eval/kl_to_teacher, eval/n.
  Metrics metrics;
  std::vector<EvalSample> samples;  // the first eval.num_samples responses
  AccuracyReport accuracy;          // of measure accuracy
};

// A response graded; one that was cut is wrong under eval.require_stop.
grading::Verdict GradeResponse(const grading::Grader& grader, const EvalConfig& config, const std::string& response,
                      bool truncated, const PromptRecord& problem);

// Responses for a problem of this source: eval.n or what eval.n_by_source says.
absl::StatusOr<std::map<std::string, int64_t>> ParseResponsesBySource(
    const std::vector<std::string>& n_by_source);

struct AccuracyRun {
  const EvalConfig* config = nullptr;
  uint64_t seed = 0;
  const std::vector<PromptRecord>* problems = nullptr;
  ResponseSource* source = nullptr;
  EvalJournal* journal = nullptr;  // null: responses are not kept
  // After each response, on the calling thread.
  std::function<void(int64_t num_done, int64_t num_tasks, int64_t num_correct)> on_progress;
};

// Every problem must have an answer. Seeds depend on (seed, problem, sample) only, so that two
// evaluations of a run use the same random numbers. Responses that the journal holds are not
// generated again. The first failure ends it, after what is under way has come back and is kept in
// the journal.
absl::StatusOr<EvalResult> EvaluateAccuracy(const AccuracyRun& run);

// outcomes[problem][sample]; exposed for tests.
AccuracyReport SummarizeAccuracy(const std::vector<PromptRecord>& problems,
                                 const std::vector<std::vector<ResponseOutcome>>& outcomes,
                                 uint64_t seed);

nlohmann::ordered_json AccuracyReportJson(const AccuracyReport& report);
// The table for the terminal; shares in per cent.
std::string AccuracyTable(const AccuracyReport& report);

}  // namespace taopd
