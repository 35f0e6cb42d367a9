#include "trainer/teacher/retrying_client.h"

#include <algorithm>
#include <utility>

#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

absl::Status Closing() { return absl::CancelledError("the teacher client is closing"); }

// "request "r1"", for messages.
std::string Named(const TeacherRequest& request) {
  return Concat("request \"", request.request_id, "\"");
}

}  // namespace

RetryingClient::RetryingClient(const RetryOptions& options, ScoreTransport* transport, Clock* clock)
    : options_(options),
      transport_(transport),
      clock_(clock),
      backoff_(options),
      endpoints_(options, &backoff_) {
  timer_ = std::thread([this] { RunTimer(); });
}

RetryingClient::~RetryingClient() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    for (WorkPtr& work : queue_) {
      refused_.push_back({std::move(work), Closing()});
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
    endpoints_.SetWorking(endpoint);
  } else {
    endpoints_.SetFailing(endpoint, status, clock_->Now());
  }
  timer_wake_.Signal();
}

TeacherClientStats RetryingClient::stats() const {
  absl::MutexLock lock(&mutex_);
  TeacherClientStats stats = stats_;
  stats.queued = static_cast<int64_t>(queue_.size());
  stats.in_flight = endpoints_.num_in_flight();
  stats.waiting = endpoints_.outage_since() != absl::InfiniteFuture();
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
    status = Annotate(status, Named(work->request));
  }

  Actions actions;
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok() && is_stopping_) status = Closing();
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
    if (!queue_.empty() && endpoints_.AnyClosed(now)) timer_wake_.Signal();
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
  for (auto next = queue_.begin(); next != queue_.end() && endpoints_.AnyOpen(now);) {
    Work& work = **next;
    if (work.not_before > now || BudgetEndLocked(work) <= now) {
      ++next;
      continue;
    }
    const size_t endpoint = endpoints_.Choose(work.last_endpoint, now);
    const bool is_probe = endpoints_.BeginAttempt(endpoint);
    ++num_active_;
    if (work.num_failures > 0) ++stats_.retries;
    const absl::Duration timeout = std::min(options_.request_timeout, BudgetEndLocked(work) - now);
    actions->attempts.push_back({std::move(*next), endpoint, is_probe, timeout});
    next = queue_.erase(next);
  }
}

void RetryingClient::RecordEndpointLocked(const Attempt& attempt,
                                          const ScoreTransport::Result& result, absl::Time now) {
  endpoints_.EndAttempt(attempt.endpoint, attempt.is_probe);
  if (is_stopping_) return;
  if (IsEndpointFailure(result.scores.status())) {
    endpoints_.SetFailing(attempt.endpoint, result.scores.status(), now);
  } else {
    endpoints_.SetWorking(attempt.endpoint);
  }
  if (result.pushback.has_value()) {
    endpoints_.LeaveAlone(attempt.endpoint,
                          now + std::min(*result.pushback, options_.outage_budget));
  }
}

std::optional<RetryingClient::Answer> RetryingClient::RequeueLocked(
    Attempt attempt, const ScoreTransport::Result& result, absl::Time now) {
  WorkPtr work = std::move(attempt.work);
  if (is_stopping_) return Answer{std::move(work), Closing()};
  const absl::Status error =
      Annotate(result.scores.status(),
               Concat(options_.endpoint_names[attempt.endpoint], ", ", Named(work->request)));
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
  if (work->num_failures % num_endpoints == 0 || !endpoints_.AnotherWorks(attempt.endpoint, now)) {
    const int64_t round = (work->num_failures + num_endpoints - 1) / num_endpoints;
    work->not_before = now + backoff_.Pause(round);
  }
  // To the front: it waited before the others did.
  queue_.push_front(std::move(work));
  return std::nullopt;
}

RetryingClient::Answer RetryingClient::GiveUpLocked(WorkPtr work) const {
  const absl::Status status =
      Unavailable(Named(work->request), " is given up after ", work->num_failures,
                  work->num_failures == 1 ? " failed attempt" : " failed attempts",
                  ": outage_budget ", absl::FormatDuration(options_.outage_budget), " is used up; ",
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
  return std::min(work.first_failure, std::max(endpoints_.outage_since(), work.submitted)) +
         options_.outage_budget;
}

absl::Time RetryingClient::NextWakeLocked(absl::Time now) const {
  if (queue_.empty()) return absl::InfiniteFuture();
  absl::Time next = endpoints_.NextOpening(now);
  for (const WorkPtr& work : queue_) {
    for (const absl::Time time : {work->not_before, BudgetEndLocked(*work)}) {
      if (time > now) next = std::min(next, time);
    }
  }
  return next;
}

}  // namespace taopd
