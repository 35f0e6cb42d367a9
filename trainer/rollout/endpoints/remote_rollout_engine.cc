#include "trainer/rollout/endpoints/remote_rollout_engine.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/log.h"
#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

// The longest time that a maintenance thread sleeps between two looks at the clock.
constexpr absl::Duration kTick = absl::Milliseconds(200);
// A request fails after this many internal errors of workers, or answers that did not come in time.
// A worker that recovers after each of them would otherwise be asked forever.
constexpr int kMaxFaults = 5;
// A request fails after this many answers from workers with other weights. Such a worker gets the
// weights again, so two runs that share one would otherwise replace each other's weights forever.
constexpr int kMaxOtherWeights = 20;
// A request fails if ready workers have refused it this often, over more than the outage budget. A
// worker that takes weights but no requests would otherwise be asked forever.
constexpr int kMinRefusals = 20;

bool IsLoss(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error) ||
         absl::IsResourceExhausted(error) || absl::IsInternal(error) || absl::IsUnknown(error);
}

absl::Status NotNeeded() { return absl::CancelledError("the rollout is no longer needed"); }

absl::Status CheckAnswer(const WorkerRollout& answer, const RolloutRequest& request,
                         int64_t vocab_size) {
  const size_t num_tokens = answer.response_ids.size();
  if (num_tokens == 0 || static_cast<int64_t>(num_tokens) > request.sampling.max_new_tokens) {
    return DataLoss("the response has ", num_tokens, " tokens of ",
                    request.sampling.max_new_tokens);
  }
  if (answer.behavior_log_probs.size() != num_tokens ||
      answer.top_ids.size() != num_tokens * static_cast<size_t>(request.sampling.num_log_probs)) {
    return DataLoss("the response has ", num_tokens, " tokens, ", answer.behavior_log_probs.size(),
                    " log-probs and ", answer.top_ids.size(), " most probable ids");
  }
  for (const std::vector<int32_t>* ids : {&answer.response_ids, &answer.top_ids}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= vocab_size)
        return DataLoss("id ", id, " is outside the vocabulary of ", vocab_size);
    }
  }
  for (const float log_prob : answer.behavior_log_probs) {
    if (!std::isfinite(log_prob) || log_prob > kLogProbSlack)
      return DataLoss("the log-prob of a sampled token is ", log_prob);
  }
  return absl::OkStatus();
}

}  // namespace

RemoteRolloutEngine::RemoteRolloutEngine(std::vector<std::unique_ptr<RolloutWorker>> workers,
                                         RolloutNeeds needs, const RemoteRolloutOptions& options,
                                         Clock* clock)
    : needs_(std::move(needs)),
      options_(options),
      clock_(clock),
      last_ready_(clock->Now()),
      pool_(static_cast<int>(static_cast<int64_t>(workers.size()) * options.max_in_flight)) {
  TAOPD_CHECK(!workers.empty());
  for (std::unique_ptr<RolloutWorker>& worker : workers) {
    Worker& added = *workers_.emplace_back(std::make_unique<Worker>());
    added.worker = std::move(worker);
    added.pause = options.first_pause;
  }
  for (const auto& worker : workers_) {
    worker->maintenance = std::thread([this, one = worker.get()] { Maintain(one); });
  }
}

RemoteRolloutEngine::~RemoteRolloutEngine() {
  CancelAll();
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  maintenance_stop_.request_stop();
  for (const auto& worker : workers_) worker->maintenance.join();
  pool_.Shutdown();
}

absl::Status RemoteRolloutEngine::Connect(absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  absl::MutexLock lock(&mutex_);
  const auto all_asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::all_of(workers_, [](const auto& w) { return w->was_asked; });
  };
  const auto any_answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::ranges::any_of(workers_, [](const auto& w) { return w->state != State::kLost; });
  };
  mutex_.AwaitWithTimeout(absl::Condition(&all_asked), timeout);
  mutex_.AwaitWithTimeout(absl::Condition(&any_answered), deadline - clock_->Now());
  for (const auto& worker : workers_) {
    if (worker->state == State::kLeftOut) return Annotate(worker->error, worker->worker->address());
  }
  if (any_answered()) return absl::OkStatus();
  return Annotate(DescribeWorkers(absl::StatusCode::kUnavailable),
                  Concat("no answer within ", absl::FormatDuration(timeout)));
}

void RemoteRolloutEngine::SetWeights(absl::StatusOr<std::shared_ptr<const PolicyWeights>> weights) {
  absl::MutexLock lock(&mutex_);
  TAOPD_CHECK(!weights.ok() || *weights != nullptr);
  weights_ = std::move(weights);
}

void RemoteRolloutEngine::Generate(std::vector<RolloutRequest> requests, Done done) {
  const auto shared_done = std::make_shared<const Done>(std::move(done));
  FinishedJobs ended;
  std::vector<Job> given;
  {
    absl::MutexLock lock(&mutex_);
    if (waiting_.empty()) last_ready_ = clock_->Now();
    for (size_t i = 0; i < requests.size(); ++i) {
      Job job = {static_cast<int64_t>(i), std::move(requests[i]), shared_done,
                 requests_stop_.get_token()};
      if (!job.request.given_ids.empty()) {
        given.push_back(std::move(job));
        continue;
      }
      absl::Status refusal = weights_.status();
      if (refusal.ok() &&
          (*weights_ == nullptr || (*weights_)->step != job.request.policy_version)) {
        refusal = FailedPrecondition("the workers were not given the weights after step ",
                                     job.request.policy_version);
      }
      if (refusal.ok()) {
        waiting_.emplace(next_order_++, std::move(job));
      } else {
        ended.emplace_back(std::move(job), refusal);
      }
    }
    Dispatch();
    for (auto& unanswerable : TakeUnanswerable()) ended.push_back(std::move(unanswerable));
  }
  AnswerAll(std::move(ended));
  for (Job& job : given) (*job.done)(job.index, GivenRollout(std::move(job.request)));
}

void RemoteRolloutEngine::CancelAll() {
  std::stop_source stopped;
  {
    absl::MutexLock lock(&mutex_);
    std::swap(stopped, requests_stop_);
  }
  // This comes before the waiting requests are taken: a request that fails at a worker from here on
  // ends instead of waiting for another one.
  stopped.request_stop();
  FinishedJobs ended;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [order, job] : waiting_) ended.emplace_back(std::move(job), NotNeeded());
    waiting_.clear();
  }
  AnswerAll(std::move(ended));
}

RemoteRolloutStats RemoteRolloutEngine::stats() const {
  absl::MutexLock lock(&mutex_);
  RemoteRolloutStats stats = stats_;
  stats.num_workers = static_cast<int64_t>(workers_.size());
  stats.num_unfinished = static_cast<int64_t>(waiting_.size());
  for (const auto& worker : workers_) {
    stats.num_unfinished += worker->num_running;
    stats.num_reachable += worker->state == State::kReachable ? 1 : 0;
    stats.num_left_out += worker->state == State::kLeftOut ? 1 : 0;
  }
  return stats;
}

bool RemoteRolloutEngine::needs_probe() const {
  return std::ranges::any_of(workers_,
                             [](const auto& worker) { return worker->worker->needs_probe(); });
}

void RemoteRolloutEngine::Maintain(Worker* worker) {
  while (true) {
    std::shared_ptr<const PolicyWeights> weights;
    bool checks = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return is_stopping_ || NeedsWeights(*worker);
      };
      const absl::Duration pause = worker->state == State::kLost ? worker->retry_at - clock_->Now()
                                                                 : absl::InfiniteDuration();
      mutex_.AwaitWithTimeout(absl::Condition(&has_work), std::min(pause, kTick));
      if (is_stopping_) return;
      if (NeedsWeights(*worker)) {
        weights = *weights_;
        worker->weights = nullptr;  // releases the files of the previous version
      }
      checks = worker->state == State::kLost && clock_->Now() >= worker->retry_at;
    }
    absl::Status status;
    if (weights != nullptr)
      status = worker->worker->SetWeights(*weights, maintenance_stop_.get_token());
    if (checks) status = worker->worker->Check(needs_, maintenance_stop_.get_token());
    FinishedJobs ended;
    {
      absl::MutexLock lock(&mutex_);
      if (weights != nullptr || checks) RecordAnswer(status, worker);
      // The pause starts over only with a response, because the worker may fail again immediately.
      if (weights != nullptr && status.ok()) worker->weights = weights;
      Dispatch();
      ended = TakeUnanswerable();
    }
    AnswerAll(std::move(ended));
  }
}

void RemoteRolloutEngine::RecordAnswer(const absl::Status& status, Worker* worker) {
  worker->was_asked = true;
  // An answer to a request may have left it out meanwhile.
  if (is_stopping_ || worker->state == State::kLeftOut) return;
  if (status.ok()) {
    if (worker->state == State::kLost && worker->num_times_lost > 0)
      LogInfo("a rollout worker answers again", {{"endpoint", worker->worker->address()}});
    worker->state = State::kReachable;
    return;
  }
  if (IsLoss(status) || absl::IsDataLoss(status) || absl::IsCancelled(status) ||
      absl::IsAborted(status)) {
    MarkLost(status, worker);
  } else {
    LeaveOut(status, worker);
  }
}

void RemoteRolloutEngine::MarkLost(const absl::Status& error, Worker* worker) {
  if (worker->state == State::kLeftOut) return;
  if (worker->state == State::kReachable) {
    ++worker->num_times_lost;
    ++stats_.num_lost;
    LogWarning("a rollout worker is lost; its requests go to others",
               {{"endpoint", worker->worker->address()}, {"error", error}});
  }
  worker->state = State::kLost;
  worker->weights = nullptr;
  worker->error = error;
  worker->retry_at = clock_->Now() + worker->pause;
  worker->pause = std::min(2 * worker->pause, options_.max_pause);
}

void RemoteRolloutEngine::LeaveOut(const absl::Status& error, Worker* worker) {
  if (worker->state == State::kLeftOut) return;
  worker->state = State::kLeftOut;
  worker->weights = nullptr;
  worker->error = error;
  LogError("a rollout worker is no longer used",
           {{"endpoint", worker->worker->address()}, {"error", error}});
}

void RemoteRolloutEngine::Dispatch() {
  while (true) {
    Worker* best = nullptr;
    for (const auto& worker : workers_) {
      if (!IsReady(*worker)) continue;
      last_ready_ = clock_->Now();
      if (worker->num_running >= options_.max_in_flight) continue;
      if (best == nullptr || worker->num_running < best->num_running) best = worker.get();
    }
    if (best == nullptr || waiting_.empty() || is_stopping_) return;
    const auto node = waiting_.extract(waiting_.begin());
    ++best->num_running;
    pool_.Enqueue([this, best, order = node.key(), job = node.mapped(), weights = best->weights,
                   num_times_lost = best->num_times_lost]() mutable {
      Run(best, order, std::move(job), weights, num_times_lost);
    });
  }
}

void RemoteRolloutEngine::Run(Worker* worker, uint64_t order, Job job,
                              const std::shared_ptr<const PolicyWeights>& weights,
                              int64_t num_times_lost) {
  absl::StatusOr<WorkerRollout> answer =
      job.stop.stop_requested() ? NotNeeded()
                                : worker->worker->Generate(job.request, *weights, job.stop);
  absl::Status error = answer.status();
  if (error.ok()) error = CheckAnswer(*answer, job.request, needs_.vocab_size);
  if (error.ok() && answer->version != weights->version) {
    error =
        DataLoss("it answers with the weights ", answer->version, " instead of ", weights->version);
  }
  absl::Status end;
  FinishedJobs ended;
  {
    absl::MutexLock lock(&mutex_);
    --worker->num_running;
    end = error.ok() ? error : HandleError(error, num_times_lost, &job, worker);
    if (error.ok()) {
      ++stats_.num_done;
      worker->pause = options_.first_pause;
    } else if (end.ok()) {
      ++stats_.num_asked_again;
      waiting_.emplace(order, job);
    }
    Dispatch();
    ended = TakeUnanswerable();
  }
  AnswerAll(std::move(ended));
  if (!error.ok()) {
    if (!end.ok()) (*job.done)(job.index, end);
    return;
  }
  Rollout& rollout = *answer;
  rollout.prompt_ids = std::move(job.request.prompt_ids);
  rollout.source = std::move(job.request.source);
  rollout.policy_version = weights->step;
  (*job.done)(job.index, std::move(rollout));
}

absl::Status RemoteRolloutEngine::HandleError(const absl::Status& error, int64_t num_times_lost,
                                              Job* job, Worker* worker) {
  if (job->stop.stop_requested()) return NotNeeded();
  const bool is_old = worker->num_times_lost != num_times_lost;  // it has been lost since
  if (absl::IsAborted(error)) {
    if (!is_old && worker->weights != nullptr) {
      LogWarning("a rollout worker has other weights than it was given; they are sent again",
                 {{"endpoint", worker->worker->address()}, {"error", error}});
      worker->weights = nullptr;
    }
    if (++job->num_answers_with_other_weights >= kMaxOtherWeights) {
      return FailedPrecondition(worker->worker->address(), ", asked ", kMaxOtherWeights,
                                " times, has other weights than it was given; does another run use "
                                "it? ",
                                error.message());
    }
  } else if (absl::IsDataLoss(error)) {
    LeaveOut(error, worker);
  } else if (IsLoss(error) || absl::IsCancelled(error)) {
    if (!is_old) MarkLost(error, worker);
    const bool is_late = absl::IsDeadlineExceeded(error);
    const bool is_fault = is_late || absl::IsInternal(error) || absl::IsUnknown(error);
    if (is_fault && ++job->num_faults >= kMaxFaults) {
      return Annotate(error, Concat(worker->worker->address(), ", asked ", kMaxFaults, " times",
                                    is_late ? " for rollout.timeout_s each" : ""));
    }
    // A full queue is not counted: it shows that the worker computes.
    if (is_fault || absl::IsResourceExhausted(error)) return absl::OkStatus();
    if (job->num_refusals++ == 0) job->first_refused_at = clock_->Now();
    if (job->num_refusals >= kMinRefusals &&
        clock_->Now() - job->first_refused_at > options_.outage_budget) {
      return Annotate(Unavailable(error.message()),
                      Concat(worker->worker->address(), ", refused ", job->num_refusals,
                             " times in more than ", absl::FormatDuration(options_.outage_budget)));
    }
  } else {
    return Annotate(error, worker->worker->address());
  }
  return absl::OkStatus();
}

RemoteRolloutEngine::FinishedJobs RemoteRolloutEngine::TakeUnanswerable() {
  const bool all_left_out = std::ranges::all_of(
      workers_, [](const auto& worker) { return worker->state == State::kLeftOut; });
  const bool is_late = clock_->Now() - last_ready_ > options_.outage_budget;
  FinishedJobs ended;
  if (waiting_.empty() || (!all_left_out && !is_late)) return ended;
  const absl::Status status = all_left_out
                                  ? Annotate(DescribeWorkers(absl::StatusCode::kFailedPrecondition),
                                             "every rollout worker is left out")
                                  : Annotate(DescribeWorkers(absl::StatusCode::kUnavailable),
                                             Concat("no rollout worker has been ready for ",
                                                    absl::FormatDuration(options_.outage_budget)));
  for (auto& [order, job] : waiting_) ended.emplace_back(std::move(job), status);
  waiting_.clear();
  return ended;
}

absl::Status RemoteRolloutEngine::DescribeWorkers(absl::StatusCode code) const {
  std::string text;
  for (const auto& worker : workers_) {
    text +=
        Concat(text.empty() ? "" : "; ", worker->worker->address(), ": ", worker->error.message());
  }
  return absl::Status(code, text);
}

void RemoteRolloutEngine::AnswerAll(FinishedJobs ended) {
  for (auto& [job, status] : ended) (*job.done)(job.index, status);
}

}  // namespace taopd
