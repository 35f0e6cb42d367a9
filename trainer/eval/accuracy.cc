#include "trainer/eval/accuracy.h"

#include <absl/strings/numbers.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/log.h"
#include "common/base/random.h"
#include "trainer/eval/response_judge.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Passes responses from the source's threads to the caller's thread.
class ResponseQueue {
 public:
  void Put(size_t index, absl::StatusOr<EvalResponse> response) {
    absl::MutexLock lock(&mutex_);
    items_.emplace_back(index, std::move(response));
  }
  // Returns nullopt if no response arrives within a second.
  std::optional<std::pair<size_t, absl::StatusOr<EvalResponse>>> Take() {
    absl::MutexLock lock(&mutex_);
    const auto not_empty = [this] { return !items_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&not_empty), absl::Seconds(1))) {
      return std::nullopt;
    }
    auto item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::pair<size_t, absl::StatusOr<EvalResponse>>> items_;
};

absl::StatusOr<ResponseOutcome> OutcomeOfRow(const Json& row, const PromptRecord& problem) {
  const auto is = [&](const char* key, bool (Json::*check)() const noexcept) {
    return row.contains(key) && (row.at(key).*check)();
  };
  if (!is("id", &Json::is_string) || !is("correct", &Json::is_boolean) ||
      !is("truncated", &Json::is_boolean) || !is("extracted", &Json::is_string) ||
      !is("num_tokens", &Json::is_number_integer) ||
      (row.contains("response") && !is("response", &Json::is_string))) {
    return DataLoss("a response of problem ", row.at("problem").dump(),
                    " lacks id, correct, truncated, extracted or num_tokens, or has a response "
                    "that is not a text");
  }
  if (row.at("id") != problem.id) {
    return FailedPrecondition("holds ", row.at("id").dump(), " as problem ",
                              row.at("problem").dump(), ", here \"", problem.id, "\"");
  }
  return ResponseOutcome{.correct = row.at("correct").get<bool>(),
                         .extracted = row.at("extracted").get<std::string>(),
                         .truncated = row.at("truncated").get<bool>(),
                         .num_tokens = row.at("num_tokens").get<int64_t>()};
}

// Returns the number of responses to a problem.
int64_t NumResponses(const EvalConfig& config, const ResponsesBySource& n_by_source,
                     const PromptRecord& problem) {
  const auto found = n_by_source.find(problem.source);
  return found == n_by_source.end() ? config.n : found->second;
}

// Returns the prompt as readable text: messages that a server renders, and ids without a tokenizer,
// as JSON.
std::string PromptText(const PromptRecord& problem, const Tokenizer* tokenizer) {
  if (!problem.prompt.empty()) return problem.prompt;
  if (!problem.messages.is_null()) return JsonText(problem.messages);
  return tokenizer != nullptr ? tokenizer->Decode(problem.prompt_ids, /*skip_special_tokens=*/false)
                              : JsonText(problem.prompt_ids);
}

class AccuracyEvaluation {
 public:
  // One of `grader` and `judge` is null.
  AccuracyEvaluation(const AccuracyRun& run, const grading::Grader* grader, ResponseJudge* judge)
      : run_(run), grader_(grader), judge_(judge), outcomes_(run.problems->size()) {}

  absl::Status Plan(const ResponsesBySource& n_by_source);
  absl::Status GenerateAndGrade();
  // Returns the outcomes of this part as bytes.
  std::string SerializeOutcomes() const;
  // Adds the outcomes of another part.
  absl::Status MergeOutcomes(const std::string& bytes);
  EvalResult Summarize();

 private:
  absl::StatusOr<bool> RestoreFromJournal(int64_t problem_index, int64_t sample, EvalSample* shown);
  absl::Status Grade(size_t task_index, const EvalResponse& response);
  bool IsMine(size_t problem_index) const {
    return static_cast<int64_t>(problem_index) % run_.part.num_parts == run_.part.number;
  }

  const AccuracyRun& run_;
  const grading::Grader* const grader_;
  ResponseJudge* const judge_;
  std::vector<std::vector<ResponseOutcome>> outcomes_;  // [problem][sample]
  std::vector<EvalSample> samples_;
  std::vector<std::pair<int64_t, int64_t>> place_of_sample_;  // (problem, sample)
  std::vector<EvalTask> tasks_;          // responses that the journal does not hold
  std::vector<int64_t> sample_of_task_;  // index in samples_, or -1
  int64_t num_kept_ = 0;                 // responses from the journal
  int64_t num_correct_ = 0;
};

// Lists the responses that are needed and takes those that the journal holds.
absl::Status AccuracyEvaluation::Plan(const ResponsesBySource& n_by_source) {
  for (size_t p = 0; p < outcomes_.size(); ++p) {
    const PromptRecord& problem = (*run_.problems)[p];
    if (problem.answer.empty() && judge_ == nullptr)
      return InvalidArgument(problem.id, ": no answer to grade against");
    const int64_t n = NumResponses(*run_.config, n_by_source, problem);
    outcomes_[p].resize(n);
    for (int64_t sample = 0; sample < n; ++sample) {
      const bool shown = static_cast<int64_t>(samples_.size()) < run_.config->num_samples;
      if (shown) {
        samples_.push_back(
            {problem.id, PromptText(problem, run_.tokenizer), "", problem.answer, false});
        place_of_sample_.emplace_back(p, sample);
      }
      if (!IsMine(p)) continue;
      TAOPD_ASSIGN_OR_RETURN(
          const bool kept,
          RestoreFromJournal(static_cast<int64_t>(p), sample, shown ? &samples_.back() : nullptr));
      if (kept) continue;
      tasks_.push_back({.problem = &problem,
                        .problem_index = static_cast<int64_t>(p),
                        .sample = sample,
                        .seed = DeriveSeed(run_.seed, "eval", {p, static_cast<uint64_t>(sample)})});
      sample_of_task_.push_back(shown ? static_cast<int64_t>(samples_.size()) - 1 : -1);
    }
  }
  return absl::OkStatus();
}

// Returns whether the journal holds the response. `shown` may be null.
absl::StatusOr<bool> AccuracyEvaluation::RestoreFromJournal(int64_t problem_index, int64_t sample,
                                                            EvalSample* shown) {
  if (run_.journal == nullptr) return false;
  const auto row = run_.journal->rows().find({problem_index, sample});
  if (row == run_.journal->rows().end()) return false;
  auto outcome = OutcomeOfRow(row->second, (*run_.problems)[problem_index]);
  if (!outcome.ok()) return Annotate(outcome.status(), run_.journal->path());
  ++num_kept_;
  num_correct_ += outcome->correct ? 1 : 0;
  if (shown != nullptr) {
    shown->response = row->second.value("response", "");
    shown->correct = outcome->correct;
  }
  outcomes_[problem_index][sample] = *std::move(outcome);
  return true;
}

absl::Status AccuracyEvaluation::GenerateAndGrade() {
  if (tasks_.empty()) return absl::OkStatus();
  const EvalSampling sampling = {.temperature = run_.config->temperature,
                                 .top_p = run_.config->top_p,
                                 .max_tokens = run_.config->max_response_length};
  // The queue is shared, because the thread that puts the last response may still be inside Put
  // when this function returns.
  const auto queue = std::make_shared<ResponseQueue>();
  run_.source->Generate(
      tasks_, sampling, [queue, this](size_t index, absl::StatusOr<EvalResponse> response) {
        if (judge_ == nullptr || !response.ok()) return queue->Put(index, std::move(response));
        judge_->Judge(tasks_[index], PromptText(*tasks_[index].problem, run_.tokenizer),
                      *std::move(response), [queue, index](absl::StatusOr<EvalResponse> judged) {
                        queue->Put(index, std::move(judged));
                      });
      });
  const auto num_tasks = static_cast<int64_t>(tasks_.size());
  absl::Status failure;
  bool is_stopped = false, is_cancelled = false;
  for (int64_t received = 0; received < num_tasks;) {
    // Runs before each response, too, because responses may arrive without a pause.
    if (run_.on_wait && failure.ok()) {
      failure = run_.on_wait();
      is_stopped = !failure.ok();
    }
    // Without a cancellation, the loop would wait for every task that is in progress.
    if (!failure.ok() && !std::exchange(is_cancelled, true)) {
      run_.source->Cancel();
      if (judge_ != nullptr) judge_->Cancel();
    }
    auto item = queue->Take();
    if (!item) continue;
    ++received;
    auto& [index, response] = *item;
    if (!response.ok()) {
      // A cancellation that another request's failure caused does not replace that failure.
      if (failure.ok() ||
          (!is_stopped && absl::IsCancelled(failure) && !absl::IsCancelled(response.status()))) {
        failure = response.status();
      }
      continue;
    }
    const absl::Status written = Grade(index, *response);
    if (failure.ok()) failure = written;
    if (run_.on_progress) {
      run_.on_progress(num_kept_ + received, num_kept_ + num_tasks, num_correct_);
    }
  }
  return failure;
}

// Grades the response to a task and writes it to the journal.
absl::Status AccuracyEvaluation::Grade(size_t task_index, const EvalResponse& response) {
  const EvalTask& task = tasks_[task_index];
  const PromptRecord& problem = *task.problem;
  grading::Verdict verdict;
  if (response.reward) {
    verdict.correct = *response.reward > kCorrectnessThreshold &&
                      !(run_.config->require_stop && response.truncated);
    verdict.reason = Concat("reward ", *response.reward);
  } else {
    verdict = GradeResponse(*grader_, *run_.config, response.text, response.truncated, problem);
  }
  outcomes_[task.problem_index][task.sample] = {verdict.correct, verdict.extracted,
                                                response.truncated, response.num_tokens};
  num_correct_ += verdict.correct ? 1 : 0;
  if (const int64_t shown = sample_of_task_[task_index]; shown >= 0) {
    samples_[shown].response = response.text;
    samples_[shown].correct = verdict.correct;
  }
  if (run_.journal == nullptr) return absl::OkStatus();
  const absl::Status written = run_.journal->Add({{"problem", task.problem_index},
                                                  {"sample", task.sample},
                                                  {"id", problem.id},
                                                  {"source", problem.source},
                                                  {"prompt", PromptText(problem, run_.tokenizer)},
                                                  {"response", response.text},
                                                  {"answer", problem.answer},
                                                  {"extracted", verdict.extracted},
                                                  {"correct", verdict.correct},
                                                  {"reason", verdict.reason},
                                                  {"truncated", response.truncated},
                                                  {"num_tokens", response.num_tokens}});
  if (written.ok() || !run_.journal_may_fail) return written;
  LogWarning("a response could not be added to the journal of the evaluation",
             {{"error", written}});
  return absl::OkStatus();
}

// The format is MessagePack, which preserves any bytes of a response.
std::string AccuracyEvaluation::SerializeOutcomes() const {
  Json found = {{"outcomes", Json::array()}, {"samples", Json::array()}};
  for (size_t p = 0; p < outcomes_.size(); ++p) {
    if (!IsMine(p)) continue;
    for (size_t sample = 0; sample < outcomes_[p].size(); ++sample) {
      const ResponseOutcome& outcome = outcomes_[p][sample];
      found["outcomes"].push_back(
          {p, sample, outcome.correct, outcome.extracted, outcome.truncated, outcome.num_tokens});
    }
  }
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (!IsMine(place_of_sample_[i].first)) continue;
    found["samples"].push_back({i, samples_[i].response, samples_[i].correct});
  }
  const std::vector<uint8_t> bytes = Json::to_msgpack(found);
  return std::string(bytes.begin(), bytes.end());
}

absl::Status AccuracyEvaluation::MergeOutcomes(const std::string& bytes) {
  const Json found = Json::from_msgpack(bytes, /*strict=*/true, /*allow_exceptions=*/false);
  if (found.is_discarded()) return Internal("the results of another rank cannot be read");
  for (const Json& row : found.at("outcomes")) {
    outcomes_.at(row.at(0)).at(row.at(1)) = {row.at(2), row.at(3), row.at(4), row.at(5)};
  }
  for (const Json& row : found.at("samples")) {
    EvalSample& sample = samples_.at(row.at(0));
    sample.response = row.at(1);
    sample.correct = row.at(2);
  }
  return absl::OkStatus();
}

EvalResult AccuracyEvaluation::Summarize() {
  int64_t num_responses = 0, num_found = 0;
  for (const auto& responses : outcomes_) {
    for (const ResponseOutcome& outcome : responses) {
      ++num_responses;
      num_found += FoundAnswer(*run_.config, {outcome.correct, outcome.extracted, ""}) ? 1 : 0;
    }
  }
  if (num_responses > 0 && num_found == 0 && run_.part.number == 0) {
    const EvalSample shown = samples_.empty() ? EvalSample() : samples_.front();
    WarnOfNoAnswers(*run_.config, num_responses, shown.response, shown.answer);
  }
  EvalResult result;
  result.accuracy = SummarizeAccuracy(*run_.problems, outcomes_, run_.seed,
                                      /*has_answers=*/judge_ == nullptr);
  result.metrics = AccuracyMetrics(result.accuracy);
  result.samples = std::move(samples_);
  return result;
}

}  // namespace

grading::Verdict GradeResponse(const grading::Grader& grader, const EvalConfig& config,
                               const std::string& response, bool truncated,
                               const PromptRecord& problem) {
  grading::Verdict verdict = grader.Grade(response, problem.answer, problem.source);
  if (config.require_stop && truncated) verdict.correct = false;
  return verdict;
}

bool FoundAnswer(const EvalConfig& config, const grading::Verdict& verdict) {
  if (verdict.correct || config.IsJudgedByServer()) return true;
  const bool searches =
      !config.answer_pattern.empty() ||
      (config.grader != "exact" && config.grader != "numeric" && config.grader != "regex");
  return searches && !verdict.extracted.empty();
}

void WarnOfNoAnswers(const EvalConfig& config, int64_t num_responses, const std::string& response,
                     const std::string& expected) {
  constexpr size_t kTail = 120;
  const size_t begin = response.size() > kTail ? response.size() - kTail : 0;
  LogWarning("no answer was found in any response: check eval.grader and eval.answer_pattern",
             {{"responses", num_responses},
              {"eval.grader", config.grader},
              {"eval.answer_pattern", config.answer_pattern},
              {"response_ends", response.substr(begin)},
              {"expected", expected}});
}

absl::StatusOr<ResponsesBySource> ParseResponsesBySource(
    const std::vector<std::string>& n_by_source) {
  ResponsesBySource result;
  for (const std::string& item : n_by_source) {
    const size_t equals = item.rfind('=');
    int64_t n = 0;
    if (equals == std::string::npos || equals == 0 ||
        !absl::SimpleAtoi(item.substr(equals + 1), &n) || n < 1) {
      return InvalidArgument("eval.n_by_source: \"", item,
                             "\" is not SOURCE=NUMBER with a number of at least 1");
    }
    if (!result.emplace(item.substr(0, equals), n).second) {
      return InvalidArgument("eval.n_by_source names ", item.substr(0, equals), " twice");
    }
  }
  return result;
}

std::vector<std::string> AccuracyMetricNames(const EvalConfig& config,
                                             const std::vector<PromptRecord>& problems) {
  const ResponsesBySource n_by_source =
      ParseResponsesBySource(config.n_by_source).value_or(ResponsesBySource());
  std::vector<std::vector<ResponseOutcome>> outcomes;
  for (const PromptRecord& problem : problems) {
    outcomes.emplace_back(NumResponses(config, n_by_source, problem));
  }
  std::vector<std::string> names;
  const AccuracyReport report = SummarizeAccuracy(problems, outcomes, /*seed=*/0,
                                                  /*has_answers=*/!config.IsJudgedByServer());
  for (const auto& [name, value] : AccuracyMetrics(report)) names.push_back(name);
  return names;
}

absl::StatusOr<EvalResult> EvaluateAccuracy(const AccuracyRun& run) {
  std::unique_ptr<grading::Grader> grader;
  std::unique_ptr<ResponseJudge> judge;
  if (run.config->IsJudgedByServer()) {
    TAOPD_ASSIGN_OR_RETURN(judge, ResponseJudge::Make(run.config->grader));
  } else {
    TAOPD_ASSIGN_OR_RETURN(grader,
                           grading::Grader::Make(run.config->grader, run.config->answer_pattern));
  }
  TAOPD_ASSIGN_OR_RETURN(const auto n_by_source, ParseResponsesBySource(run.config->n_by_source));
  AccuracyEvaluation evaluation(run, grader.get(), judge.get());
  absl::Status status = evaluation.Plan(n_by_source);
  if (status.ok()) status = evaluation.GenerateAndGrade();
  if (run.part.gather) {
    TAOPD_ASSIGN_OR_RETURN(
        const std::vector<std::string> all,
        run.part.gather(status.ok() ? absl::StatusOr<std::string>(evaluation.SerializeOutcomes())
                                    : absl::StatusOr<std::string>(status)));
    for (size_t part = 0; part < all.size(); ++part) {
      if (static_cast<int64_t>(part) == run.part.number) continue;
      TAOPD_RETURN_IF_ERROR(evaluation.MergeOutcomes(all[part]));
    }
  }
  TAOPD_RETURN_IF_ERROR(status);
  return evaluation.Summarize();
}

}  // namespace taopd
