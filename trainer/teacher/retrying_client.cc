#include "trainer/teacher/retrying_client.h"

#include <absl/time/time.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

enum class Retry { kNever, kOnce, kUntilBudget };

Retry RetryOf(const ScoreTransport::Result& result) {
  if (result.pushback.has_value() && *result.pushback < absl::ZeroDuration()) return Retry::kNever;
  switch (result.scores.status().code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
      return Retry::kUntilBudget;
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return Retry::kOnce;
    default:
      return Retry::kNever;
  }
}

// Whether the endpoint itself is in trouble; other errors show that it is there and answers.
bool IsEndpointFailure(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return true;
    default:
      return false;
  }
}

std::string Format(absl::Duration duration) { return absl::FormatDuration(duration); }

}  // namespace

RetryingClient::RetryingClient(const RetryOptions& options, ScoreTransport* transport, Clock* clock)
    : options_(options),
      transport_(transport),
      clock_(clock),
      endpoints_(options.endpoint_names.size()),
      jitter_(options.jitter_seed) {
  TAOPD_CHECK(!options.endpoint_names.empty());
  timer_ = std::thread([this] { RunTimer(); });
}

RetryingClient::~RetryingClient() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    for (WorkPtr& work : queue_) {
      refused_.push_back({std::move(work), absl::CancelledError("the teacher client is closing")});
    }
    queue_.clear();
    timer_wake_.Signal();
  }
  transport_->CancelAll();
  timer_.join();  // it leaves when every request is answered
}

void RetryingClient::SetInfo(const TeacherInfo& info) {
  absl::MutexLock lock(&mutex_);
  info_ = std::make_shared<const TeacherInfo>(info);
}

void RetryingClient::SetReachability(size_t endpoint, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    SetWorkingLocked(endpoint);
  } else {
    SetFailingLocked(endpoint, status, clock_->Now());
  }
  timer_wake_.Signal();
}

TeacherClientStats RetryingClient::stats() const {
  absl::MutexLock lock(&mutex_);
  TeacherClientStats stats = stats_;
  stats.queued = static_cast<int64_t>(queue_.size());
  for (const Endpoint& endpoint : endpoints_) stats.in_flight += endpoint.in_flight;
  stats.waiting = outage_since_ != absl::InfiniteFuture();
  return stats;
}

void RetryingClient::Score(TeacherRequest request, Done done) {
  auto work = std::make_unique<Work>();
  work->request = std::move(request);
  work->done = std::move(done);
  {
    absl::MutexLock lock(&mutex_);
    work->info = info_;
    ++stats_.requests;
  }
  absl::Status status = FailedPrecondition("Score before Connect: the teacher is not known yet");
  if (work->info != nullptr) {
    status = VerifyTeacherRequest(work->request, *work->info);
    if (status.ok()) status = transport_->Check(work->request, *work->info);
    status = Annotate(status, Concat("request \"", work->request.request_id, "\""));
  }

  Actions actions;
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok() && is_stopping_) status = absl::CancelledError("the teacher client is closing");
    if (!status.ok()) {
      // Not from this thread: the caller may hold a lock that `done` takes.
      refused_.push_back({std::move(work), status});
      timer_wake_.Signal();
      return;
    }
    const absl::Time now = clock_->Now();
    work->submitted = now;
    queue_.push_back(std::move(work));
    ScheduleLocked(now, &actions);
    // Full endpoints need no timer: the next answer makes room. Closed ones do.
    const bool is_closed = std::any_of(endpoints_.begin(), endpoints_.end(), [&](const auto& e) {
      return e.is_failing || e.paused_until > now;
    });
    if (!queue_.empty() && is_closed) timer_wake_.Signal();
  }
  Perform(std::move(actions));
}

void RetryingClient::RunTimer() {
  mutex_.Lock();
  while (!is_stopping_ || num_active_ > 0 || !refused_.empty()) {
    // One reading for all decisions of a round: a moment that fell between two would be slept over.
    const absl::Time now = clock_->Now();
    Actions actions;
    actions.answers.swap(refused_);
    num_active_ += static_cast<int64_t>(actions.answers.size());
    for (const Answer& answer : actions.answers) stats_.failures += !answer.scores.ok();
    ExpireLocked(now, &actions);
    ScheduleLocked(now, &actions);
    if (!actions.answers.empty() || !actions.attempts.empty()) {
      mutex_.Unlock();
      Perform(std::move(actions));
      mutex_.Lock();
      continue;
    }
    timer_wake_.WaitWithTimeout(&mutex_, NextWakeLocked(now) - now);
  }
  mutex_.Unlock();
}

void RetryingClient::Perform(Actions actions) {
  for (Attempt& attempt : actions.attempts) Begin(std::move(attempt));
  for (Answer& answer : actions.answers) {
    answer.work->done(std::move(answer.scores));
    answer.work.reset();  // what `done` holds goes before the client may
    absl::MutexLock lock(&mutex_);
    if (--num_active_ == 0 && is_stopping_) timer_wake_.Signal();
  }
}

void RetryingClient::Begin(Attempt attempt) {
  const Work& work = *attempt.work;
  const size_t endpoint = attempt.endpoint;
  const absl::Duration timeout = attempt.timeout;
  // std::function wants something that can be copied; it is called once.
  auto shared = std::make_shared<Attempt>(std::move(attempt));
  transport_->Start(endpoint, work.request, *work.info, timeout,
                    [this, shared](ScoreTransport::Result result) {
                      OnResult(std::move(*shared), std::move(result));
                    });
}

void RetryingClient::OnResult(Attempt attempt, ScoreTransport::Result result) {
  Actions actions;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = clock_->Now();
    RecordEndpointLocked(attempt, result, now);
    std::optional<Answer> answer;
    if (result.scores.ok()) {
      answer = Answer{std::move(attempt.work), std::move(result.scores)};
    } else {
      answer = RequeueLocked(std::move(attempt), result, now);
      timer_wake_.Signal();
    }
    if (answer.has_value()) {
      ++num_active_;
      stats_.failures += !answer->scores.ok();
      actions.answers.push_back(std::move(*answer));
    }
    ScheduleLocked(now, &actions);
  }
  Perform(std::move(actions));
  // Last, so that the client outlives this call.
  absl::MutexLock lock(&mutex_);
  if (--num_active_ == 0 && is_stopping_) timer_wake_.Signal();
}

void RetryingClient::ScheduleLocked(absl::Time now, Actions* actions) {
  if (is_stopping_) return;
  for (auto next = queue_.begin(); next != queue_.end();) {
    const bool any_open = std::any_of(endpoints_.begin(), endpoints_.end(),
                                      [&](const Endpoint& e) { return IsOpenLocked(e, now); });
    if (!any_open) return;
    Work& work = **next;
    if (work.not_before > now || BudgetEndLocked(work) <= now) {
      ++next;
      continue;
    }
    const size_t index = ChooseEndpointLocked(work, now);
    Endpoint& endpoint = endpoints_[index];
    ++endpoint.in_flight;
    endpoint.is_probing = endpoint.is_failing;
    ++num_active_;
    if (work.num_failures > 0) ++stats_.retries;
    const absl::Duration timeout = std::min(options_.request_timeout, BudgetEndLocked(work) - now);
    const bool is_probe = endpoint.is_failing;
    actions->attempts.push_back({std::move(*next), index, is_probe, timeout});
    next = queue_.erase(next);
  }
}

bool RetryingClient::IsOpenLocked(const Endpoint& endpoint, absl::Time now) const {
  if (endpoint.paused_until > now) return false;
  if (endpoint.in_flight >= options_.max_in_flight_per_endpoint) return false;
  return !endpoint.is_failing || (!endpoint.is_probing && endpoint.probe_at <= now);
}

size_t RetryingClient::ChooseEndpointLocked(const Work& work, absl::Time now) const {
  std::optional<size_t> best;
  const auto rank = [&](size_t i) {
    return std::make_pair(work.last_endpoint == i, endpoints_[i].in_flight);
  };
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    if (!IsOpenLocked(endpoints_[i], now)) continue;
    if (!best.has_value() || rank(i) < rank(*best)) best = i;
  }
  TAOPD_CHECK(best.has_value());
  return *best;
}

void RetryingClient::RecordEndpointLocked(const Attempt& attempt,
                                          const ScoreTransport::Result& result, absl::Time now) {
  Endpoint& endpoint = endpoints_[attempt.endpoint];
  --endpoint.in_flight;
  if (attempt.is_probe) endpoint.is_probing = false;
  if (is_stopping_) return;
  if (IsEndpointFailure(result.scores.status())) {
    SetFailingLocked(attempt.endpoint, result.scores.status(), now);
  } else {
    SetWorkingLocked(attempt.endpoint);
  }
  if (result.pushback.has_value()) {
    const absl::Duration pause = std::min(*result.pushback, options_.outage_budget);
    endpoint.paused_until = std::max(endpoint.paused_until, now + pause);
  }
}

void RetryingClient::SetFailingLocked(size_t index, const absl::Status& error, absl::Time now) {
  Endpoint& endpoint = endpoints_[index];
  if (!endpoint.is_failing) {
    LogWarning("teacher endpoint fails",
               {{"endpoint", options_.endpoint_names[index]}, {"error", error}});
    endpoint.is_failing = true;
    endpoint.num_failed_probes = 0;
  } else if (endpoint.probe_at > now) {
    return;  // an attempt from before the endpoint was closed: the pause does not grow
  }
  endpoint.probe_at = now + JitteredLocked(++endpoint.num_failed_probes);
  const bool all_fail = std::all_of(endpoints_.begin(), endpoints_.end(),
                                    [](const Endpoint& e) { return e.is_failing; });
  if (all_fail && outage_since_ == absl::InfiniteFuture()) outage_since_ = now;
}

void RetryingClient::SetWorkingLocked(size_t index) {
  Endpoint& endpoint = endpoints_[index];
  if (endpoint.is_failing) {
    LogInfo("teacher endpoint answers again", {{"endpoint", options_.endpoint_names[index]}});
  }
  endpoint.is_failing = false;
  outage_since_ = absl::InfiniteFuture();
}

std::optional<RetryingClient::Answer> RetryingClient::RequeueLocked(
    Attempt attempt, const ScoreTransport::Result& result, absl::Time now) {
  WorkPtr work = std::move(attempt.work);
  if (is_stopping_) {
    return Answer{std::move(work), absl::CancelledError("the teacher client is closing")};
  }
  const absl::Status error =
      Annotate(result.scores.status(), Concat(options_.endpoint_names[attempt.endpoint],
                                              ", request "
                                              ", work->request.request_id, "
                                              ""));
  const Retry retry = RetryOf(result);
  if (retry == Retry::kNever || (retry == Retry::kOnce && work->num_doubtful > 0)) {
    return Answer{std::move(work), error};
  }
  if (retry == Retry::kOnce) ++work->num_doubtful;
  ++work->num_failures;
  work->last_error = error;
  work->last_endpoint = attempt.endpoint;
  work->first_failure = std::min(work->first_failure, now);
  if (BudgetEndLocked(*work) <= now) return GiveUpLocked(std::move(work));

  // At once where an endpoint is left that has not failed the request in this round.
  const int64_t num_endpoints = static_cast<int64_t>(endpoints_.size());
  bool other_works = false;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    const Endpoint& endpoint = endpoints_[i];
    if (i != attempt.endpoint && !endpoint.is_failing && endpoint.paused_until <= now) {
      other_works = true;
    }
  }
  if (!other_works || work->num_failures % num_endpoints == 0) {
    const int64_t round = (work->num_failures + num_endpoints - 1) / num_endpoints;
    work->not_before = now + JitteredLocked(round);
  }
  // To the front: it waited before the others did.
  queue_.push_front(std::move(work));
  return std::nullopt;
}

RetryingClient::Answer RetryingClient::GiveUpLocked(WorkPtr work) const {
  const absl::Status status = Unavailable(
      "request "
      ", work->request.request_id, "
      " is given up after ",
      work->num_failures, " failed attempts: outage_budget ", Format(options_.outage_budget),
      " is used up; ",
      work->last_error.ok() ? "every endpoint fails"
                            : "last error: " + work->last_error.ToString());
  return {std::move(work), status};
}

void RetryingClient::ExpireLocked(absl::Time now, Actions* actions) {
  for (WorkPtr& work : queue_) {
    if (BudgetEndLocked(*work) > now) continue;
    actions->answers.push_back(GiveUpLocked(std::move(work)));
    ++stats_.failures;
    ++num_active_;
  }
  std::erase(queue_, nullptr);
}

absl::Time RetryingClient::BudgetEndLocked(const Work& work) const {
  return std::min(work.first_failure, std::max(outage_since_, work.submitted)) +
         options_.outage_budget;
}

absl::Time RetryingClient::NextWakeLocked(absl::Time now) const {
  absl::Time next = absl::InfiniteFuture();
  const auto consider = [&](absl::Time time) {
    if (time > now) next = std::min(next, time);
  };
  for (const WorkPtr& work : queue_) {
    consider(work->not_before);
    consider(BudgetEndLocked(*work));
  }
  if (queue_.empty()) return next;
  for (const Endpoint& endpoint : endpoints_) {
    consider(endpoint.paused_until);
    if (endpoint.is_failing && !endpoint.is_probing) consider(endpoint.probe_at);
  }
  return next;
}

absl::Duration RetryingClient::JitteredLocked(int64_t num_failures) {
  const double growth = std::exp2(static_cast<double>(std::min<int64_t>(num_failures - 1, 62)));
  const absl::Duration limit = std::min(options_.max_backoff, options_.initial_backoff * growth);
  return limit * jitter_.NextUniform();
}

}  // namespace taopd
