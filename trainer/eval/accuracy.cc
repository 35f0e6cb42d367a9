#include "trainer/eval/accuracy.h"

#include <absl/strings/numbers.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <memory>

#include "common/base/random.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// What the source hands over, from its threads to the caller's.
class Inbox {
 public:
  void Put(size_t index, absl::StatusOr<EvalResponse> response) {
    absl::MutexLock lock(&mutex_);
    items_.emplace_back(index, std::move(response));
  }
  std::pair<size_t, absl::StatusOr<EvalResponse>> Take() {
    absl::MutexLock lock(&mutex_);
    const auto not_empty = [this] { return !items_.empty(); };
    mutex_.Await(absl::Condition(&not_empty));
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
      !is("num_tokens", &Json::is_number_integer)) {
    return DataLoss("a response of problem ", row.at("problem").dump(),
                    " lacks id, correct, truncated, extracted or num_tokens");
  }
  if (row.at("id") != problem.id) {
    return FailedPrecondition("holds ", row.at("id").dump(), " as problem ",
                              row.at("problem").dump(), ", here \"", problem.id, "\"");
  }
  ResponseOutcome outcome;
  outcome.correct = row.at("correct").get<bool>();
  outcome.truncated = row.at("truncated").get<bool>();
  outcome.extracted = row.at("extracted").get<std::string>();
  outcome.num_tokens = row.at("num_tokens").get<int64_t>();
  return outcome;
}

// A prompt for people.
std::string PromptText(const PromptRecord& problem) {
  if (!problem.prompt.empty()) return problem.prompt;
  if (!problem.messages.is_null())
    return problem.messages.dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json(problem.prompt_ids).dump();
}

Metrics MetricsOf(const AccuracyReport& report) {
  const SourceScores& all = report.all;
  Metrics metrics = {{"eval/accuracy", all.avg},
                     {"eval/accuracy_low", all.avg_interval.low},
                     {"eval/accuracy_high", all.avg_interval.high},
                     {"eval/n", static_cast<double>(all.num_problems)},
                     {"eval/response_length_mean", all.mean_tokens},
                     {"eval/truncated_share", all.truncated_share},
                     {"eval/no_answer_share", all.no_answer_share}};
  if (!all.pass_at_k.empty() && all.pass_at_k.back().first > 1) {
    metrics.emplace_back(Concat("eval/pass_at_", all.pass_at_k.back().first),
                         all.pass_at_k.back().second);
    metrics.emplace_back("eval/majority", all.majority);
  }
  if (report.sources.size() > 1) {
    metrics.emplace_back("eval/macro_accuracy", report.macro_avg);
    for (const SourceScores& source : report.sources)
      metrics.emplace_back("eval/accuracy/" + source.source, source.avg);
  }
  return metrics;
}

}  // namespace

grading::Verdict GradeResponse(const grading::Grader& grader, const EvalConfig& config,
                               const std::string& response, bool truncated,
                               const PromptRecord& problem) {
  grading::Verdict verdict = grader.Grade(response, problem.answer, problem.source);
  if (config.require_stop && truncated) verdict.correct = false;
  return verdict;
}

absl::StatusOr<std::map<std::string, int64_t>> ParseResponsesBySource(
    const std::vector<std::string>& n_by_source) {
  std::map<std::string, int64_t> result;
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

absl::StatusOr<EvalResult> EvaluateAccuracy(const AccuracyRun& run) {
  const EvalConfig& config = *run.config;
  const std::vector<PromptRecord>& problems = *run.problems;
  TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<grading::Grader> grader,
                         grading::Grader::Make(config.grader, config.answer_pattern));
  TAOPD_ASSIGN_OR_RETURN(const auto n_by_source, ParseResponsesBySource(config.n_by_source));

  std::vector<std::vector<ResponseOutcome>> outcomes(problems.size());
  std::vector<EvalTask> tasks;
  std::vector<EvalSample> samples;
  std::vector<int64_t> sample_of_task;  // index in `samples`, or -1
  int64_t num_kept = 0, num_correct = 0;
  for (size_t p = 0; p < problems.size(); ++p) {
    if (problems[p].answer.empty())
      return InvalidArgument(problems[p].id, ": no answer to grade against");
    const auto other_n = n_by_source.find(problems[p].source);
    const int64_t n = other_n == n_by_source.end() ? config.n : other_n->second;
    outcomes[p].resize(n);
    for (int64_t sample = 0; sample < n; ++sample) {
      const auto index = static_cast<int64_t>(p);
      const bool shown = static_cast<int64_t>(samples.size()) < config.num_samples;
      if (shown)
        samples.push_back({problems[p].id, PromptText(problems[p]), "", problems[p].answer, false});
      if (run.journal != nullptr) {
        if (const auto row = run.journal->rows().find({index, sample});
            row != run.journal->rows().end()) {
          auto outcome = OutcomeOfRow(row->second, problems[p]);
          if (!outcome.ok()) return Annotate(outcome.status(), run.journal->path());
          outcomes[p][sample] = *std::move(outcome);
          ++num_kept;
          num_correct += outcomes[p][sample].correct ? 1 : 0;
          if (shown) {
            samples.back().response = row->second.value("response", "");
            samples.back().correct = outcomes[p][sample].correct;
          }
          continue;
        }
      }
      EvalTask task;
      task.problem = &problems[p];
      task.problem_index = index;
      task.sample = sample;
      task.seed = DeriveSeed(run.seed, "eval", {p, static_cast<uint64_t>(sample)});
      tasks.push_back(task);
      sample_of_task.push_back(shown ? static_cast<int64_t>(samples.size()) - 1 : -1);
    }
  }

  EvalSampling sampling;
  sampling.temperature = config.temperature;
  sampling.top_p = config.top_p;
  sampling.max_tokens = config.max_response_length;
  // Shared: the thread that puts the last response may still be leaving Put when this function
  // returns.
  const auto inbox = std::make_shared<Inbox>();
  if (!tasks.empty()) {
    run.source->Generate(tasks, sampling,
                         [inbox](size_t index, absl::StatusOr<EvalResponse> response) {
                           inbox->Put(index, std::move(response));
                         });
  }
  absl::Status failure;
  for (size_t received = 0; received < tasks.size(); ++received) {
    auto [index, response] = inbox->Take();
    if (!response.ok()) {
      if (failure.ok() || (absl::IsCancelled(failure) && !absl::IsCancelled(response.status())))
        failure = response.status();
      continue;
    }
    const EvalTask& task = tasks[index];
    const PromptRecord& problem = *task.problem;
    const grading::Verdict verdict =
        GradeResponse(*grader, config, response->text, response->truncated, problem);
    outcomes[task.problem_index][task.sample] = {verdict.correct, verdict.extracted,
                                                 response->truncated, response->num_tokens};
    num_correct += verdict.correct ? 1 : 0;
    if (sample_of_task[index] >= 0) {
      samples[sample_of_task[index]].response = response->text;
      samples[sample_of_task[index]].correct = verdict.correct;
    }
    if (run.journal != nullptr) {
      const absl::Status written = run.journal->Add({{"problem", task.problem_index},
                                                     {"sample", task.sample},
                                                     {"id", problem.id},
                                                     {"source", problem.source},
                                                     {"prompt", PromptText(problem)},
                                                     {"response", response->text},
                                                     {"answer", problem.answer},
                                                     {"extracted", verdict.extracted},
                                                     {"correct", verdict.correct},
                                                     {"reason", verdict.reason},
                                                     {"truncated", response->truncated},
                                                     {"num_tokens", response->num_tokens}});
      if (failure.ok()) failure = written;
    }
    if (run.on_progress) {
      run.on_progress(num_kept + static_cast<int64_t>(received) + 1,
                      num_kept + static_cast<int64_t>(tasks.size()), num_correct);
    }
  }
  TAOPD_RETURN_IF_ERROR(failure);

  EvalResult result;
  result.accuracy = SummarizeAccuracy(problems, outcomes, run.seed);
  result.metrics = MetricsOf(result.accuracy);
  result.samples = std::move(samples);
  return result;
}

}  // namespace taopd
