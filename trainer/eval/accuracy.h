// Measures the accuracy of generated answers: takes responses from a ResponseSource, grades them
// and summarizes them by data set. `train` and `eval` share this code. It does not depend on
// LibTorch.
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
  Metrics metrics;                  // under the names of metrics.jsonl
  std::vector<EvalSample> samples;  // the first eval.num_samples responses
  AccuracyReport accuracy;          // empty unless eval.measure is accuracy
};

// Grades one response. A truncated response is wrong if eval.require_stop is set.
grading::Verdict GradeResponse(const grading::Grader& grader, const EvalConfig& config,
                               const std::string& response, bool truncated,
                               const PromptRecord& problem);

// Returns whether the grader found an answer in the response. For graders that treat the whole
// response as the answer (exact and numeric without a pattern, regex), a wrong response counts as
// one without an answer.
bool FoundAnswer(const EvalConfig& config, const grading::Verdict& verdict);

// Logs a warning that none of `num_responses` responses has an answer, with the end of `response`
// as an example and the answer that was expected there.
void WarnOfNoAnswers(const EvalConfig& config, int64_t num_responses, const std::string& response,
                     const std::string& expected);

// The number of responses to each problem of a source.
using ResponsesBySource = std::map<std::string, int64_t>;
// Parses eval.n_by_source, a list of SOURCE=NUMBER. Returns INVALID_ARGUMENT for any other text, a
// number below 1, and a source named twice.
absl::StatusOr<ResponsesBySource> ParseResponsesBySource(
    const std::vector<std::string>& n_by_source);

// This process's part of an evaluation that several processes share. It generates and grades every
// num_parts-th problem, starting with problem `number`. Every process gets the result that a single
// process would get.
struct AccuracyPart {
  int64_t number = 0;
  int64_t num_parts = 1;
  // Exchanges the outcomes between the processes: takes this part's outcomes, or its error, and
  // returns those of all parts in order. Called once; an error from it ends the evaluation. Empty
  // if there is one part.
  std::function<absl::StatusOr<std::vector<std::string>>(const absl::StatusOr<std::string>& mine)>
      gather;
};

// The arguments of EvaluateAccuracy. Everything they point to must outlive the call.
struct AccuracyRun {
  const EvalConfig* config = nullptr;
  uint64_t seed = 0;
  const std::vector<PromptRecord>* problems = nullptr;
  ResponseSource* source = nullptr;
  const Tokenizer* tokenizer = nullptr;  // decodes prompts of token ids; may be null
  EvalJournal* journal = nullptr;        // if null, responses are not kept
  // If true, a failure to write a response to the journal is not an error.
  bool journal_may_fail = false;
  AccuracyPart part = {};
  // Runs after each graded response, on the thread that called EvaluateAccuracy. May be empty.
  std::function<void(int64_t num_done, int64_t num_tasks, int64_t num_correct)> on_progress = {};
  // Runs on the same thread before each response, and at least about once a second while responses
  // are pending. An error from it cancels the source and becomes the result of the evaluation. May
  // be empty.
  std::function<absl::Status()> on_wait = {};
};

// Generates, grades and summarizes eval.n responses to each problem (or the number that
// eval.n_by_source gives for its source). Blocks until all are done.
//
// The seed of a response depends only on run.seed, its problem and its sample, so two evaluations
// of a run use the same random numbers. Responses that the journal holds are not generated again.
// Logs a warning, with an example, if the grader found an answer in none of the responses.
//
// Returns INVALID_ARGUMENT if a problem has no answer, and FAILED_PRECONDITION or DATA_LOSS if the
// journal does not match the problems. The first error of the source or of the journal cancels the
// source and becomes the result. Responses that a source finishes nevertheless are written to the
// journal.
absl::StatusOr<EvalResult> EvaluateAccuracy(const AccuracyRun& run);

// Returns the names of the metrics that EvaluateAccuracy reports for these problems. REQUIRES:
// `problems` is not empty.
std::vector<std::string> AccuracyMetricNames(const EvalConfig& config,
                                             const std::vector<PromptRecord>& problems);

}  // namespace taopd
