// Accuracy of generated answers: responses from a ResponseSource, graded, and summed up by data
// set. `train` and `eval` measure it in the same way. Knows no LibTorch.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/metrics/sink.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy_report.h"
#include "trainer/eval/journal.h"
#include "trainer/eval/response_source.h"
#include "trainer/grading/grader.h"

namespace taopd {

// A graded response to show to people.
struct EvalSample {
  std::string id;
  std::string prompt;
  std::string response;
  std::string answer;
  bool correct = false;
};

struct EvalResult {
  Metrics metrics;                  // by the names of metrics.jsonl
  std::vector<EvalSample> samples;  // the first eval.num_samples responses
  AccuracyReport accuracy;          // empty unless eval.measure is accuracy
};

// Grades one response. A response that was cut is wrong if eval.require_stop is set.
grading::Verdict GradeResponse(const grading::Grader& grader, const EvalConfig& config,
                               const std::string& response, bool truncated,
                               const PromptRecord& problem);

// Whether the grader has found an answer in the response to compare. A grader that takes a whole
// response for the answer (exact and numeric without a pattern, regex) has found none where that is
// wrong.
bool FoundAnswer(const EvalConfig& config, const grading::Verdict& verdict);

// Warns that no answer is found in any of so many responses, with the end of one as an example, and
// with what was expected there.
void WarnOfNoAnswers(const EvalConfig& config, int64_t num_responses, const std::string& response,
                     const std::string& expected);

// Parses eval.n_by_source: SOURCE=NUMBER, the number of responses to each problem of that source.
// Returns INVALID_ARGUMENT for any other text, a number below 1, and a source named twice.
absl::StatusOr<std::map<std::string, int64_t>> ParseResponsesBySource(
    const std::vector<std::string>& n_by_source);

// An evaluation that several processes share: this one generates and grades every num_parts-th
// problem, from problem `number` on, and each of them gets the result that one alone would get.
struct EvalPart {
  int64_t number = 0;
  int64_t num_parts = 1;
  // Makes of what each process has found, or its error, what all have found, in the order of the
  // parts. Called once; an error from it ends the evaluation. Empty for one part.
  std::function<absl::StatusOr<std::vector<std::string>>(const absl::StatusOr<std::string>& mine)>
      gather;
};

// What is evaluated. Everything it points to must outlive EvaluateAccuracy.
struct AccuracyRun {
  const EvalConfig* config = nullptr;
  uint64_t seed = 0;
  const std::vector<PromptRecord>* problems = nullptr;
  ResponseSource* source = nullptr;
  EvalJournal* journal = nullptr;  // null: responses are not kept
  // Go on without a response in the journal that cannot be written; otherwise that is an error.
  bool journal_may_fail = false;
  EvalPart part;
  // Runs after each response, on the thread that called EvaluateAccuracy. May be empty.
  std::function<void(int64_t num_done, int64_t num_tasks, int64_t num_correct)> on_progress;
  // Runs about once a second while responses are waited for, on the same thread. An error from it
  // cancels the source and is the result of the evaluation. May be empty.
  std::function<absl::Status()> on_wait;
};

// Generates, grades and sums up eval.n responses to each problem (or the number that
// eval.n_by_source gives for its source). Blocks until it is done.
//
// The seed of a response depends only on run.seed, its problem and its sample, so two evaluations
// of a run use the same random numbers. Responses that the journal holds are not generated again.
// Logs a warning, with an example, if the grader found an answer in none of the responses.
//
// Returns INVALID_ARGUMENT if a problem has no answer, and FAILED_PRECONDITION or DATA_LOSS if the
// journal does not fit the problems. The first error of the source ends the evaluation; responses
// that are under way are still waited for and written to the journal.
absl::StatusOr<EvalResult> EvaluateAccuracy(const AccuracyRun& run);

// The names of the metrics that EvaluateAccuracy gives for these problems. REQUIRES: there are
// some.
std::vector<std::string> AccuracyMetricNames(const EvalConfig& config,
                                             const std::vector<PromptRecord>& problems);

}  // namespace taopd
