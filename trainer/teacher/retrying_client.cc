#include "trainer/teacher/retrying_client.h"

#include <algorithm>
#include <utility>

#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

absl::Status Closing() { return absl::CancelledError("the teacher client is closing"); }

// Returns "request "r1"" for messages.
std::string Named(const TeacherRequest& request) {
  return Concat("request \"", request.request_id, "\"");
}

}  // namespace

RetryingClient::RetryingClient(const RetryOptions& options, ScoreTransport* transport, Clock* clock)
    : options_(options),
      transport_(transport),
      clock_(clock),
      backoff_(options),
      endpoints_(options, &backoff_),
      made_(clock->Now()) {
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
  timer_.join();  // it ends when every request is answered
}

void RetryingClient::SetInfo(const TeacherInfo& info) {
  absl::MutexLock lock(&mutex_);
  info_ = std::make_shared<const TeacherInfo>(info);
}

void RetryingClient::SetReachability(size_t endpoint, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = clock_->Now();
  if (status.ok()) {
    endpoints_.SetWorking(endpoint, now);
  } else {
    endpoints_.SetFailing(endpoint, status, now);
  }
  timer_wake_.Signal();
}

TeacherClientStats RetryingClient::stats() const {
  absl::MutexLock lock(&mutex_);
  TeacherClientStats stats = stats_;
  stats.queued = static_cast<int64_t>(queue_.size());
  stats.in_flight = endpoints_.num_in_flight();
  stats.waiting = endpoints_.outage_since() != absl::InfiniteFuture();
  const absl::Time now = clock_->Now();
  stats.age = now - made_;
  stats.endpoints = endpoints_.stats(now);
  return stats;
}

void RetryingClient::Score(TeacherRequest request, Done done) {
  auto work = std::make_shared<Work>();
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
      // Answer on another thread, because the caller may hold a lock that `done` takes.
      refused_.push_back({std::move(work), status});
      timer_wake_.Signal();
      return;
    }
    const absl::Time now = clock_->Now();
    work->submitted = now;
    queue_.push_back(std::move(work));
    ScheduleLocked(now, &actions);
    // Full endpoints need no timer, because the next answer makes room. Closed ones and hedges need
    // it.
    if ((!queue_.empty() && endpoints_.AnyClosed(now)) || unhedged_.size() == 1) {
      timer_wake_.Signal();
    }
  }
  Perform(std::move(actions));
}

void RetryingClient::RunTimer() {
  mutex_.Lock();
  while (!is_stopping_ || num_active_ > 0 || !refused_.empty()) {
    // One clock reading serves all decisions of a round. With two, a moment between them would be
    // missed.
    const absl::Time now = clock_->Now();
    Actions actions;
    actions.answers.swap(refused_);
    num_active_ += static_cast<int64_t>(actions.answers.size());
    for (const Answer& answer : actions.answers) stats_.failures += !answer.scores.ok();
    ExpireLocked(now, &actions);
    ScheduleLocked(now, &actions);
    HedgeLocked(now, &actions);
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
    answer.work->done = nullptr;  // its captures must be destroyed before the client
    answer.work.reset();
    absl::MutexLock lock(&mutex_);
    if (--num_active_ == 0 && is_stopping_) timer_wake_.Signal();
  }
}

void RetryingClient::Begin(Attempt attempt) {
  const Work& work = *attempt.work;
  const size_t endpoint = attempt.endpoint;
  const absl::Duration timeout = attempt.timeout;
  // std::function requires a copyable object, although it is called once.
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
    std::erase(unhedged_, attempt.work);
    --attempt.work->num_open;
    std::optional<Answer> answer;
    if (attempt.work->is_answered) {
      // The other attempt was faster.
    } else if (result.scores.ok()) {
      stats_.hedges_won += attempt.is_hedge;
      answer = Answer{std::move(attempt.work), std::move(result.scores)};
    } else {
      answer = RequeueLocked(std::move(attempt), result, now);
      timer_wake_.Signal();
    }
    if (answer.has_value()) {
      answer->work->is_answered = true;
      ++num_active_;
      stats_.failures += !answer->scores.ok();
      actions.answers.push_back(std::move(*answer));
    }
    attempt.work.reset();
    ScheduleLocked(now, &actions);
    HedgeLocked(now, &actions);
    if (!unhedged_.empty()) timer_wake_.Signal();
  }
  Perform(std::move(actions));
  // This comes last, so that the client outlives this call.
  absl::MutexLock lock(&mutex_);
  if (--num_active_ == 0 && is_stopping_) timer_wake_.Signal();
}

void RetryingClient::ScheduleLocked(absl::Time now, Actions* actions) {
  if (is_stopping_) return;
  for (auto next = queue_.begin(); next != queue_.end() && endpoints_.AnyOpen(now);) {
    const WorkPtr work = *next;
    if (work->not_before > now || BudgetEndLocked(*work) <= now) {
      ++next;
      continue;
    }
    const size_t endpoint = endpoints_.Choose(work->last_endpoint, now);
    if (MustAvoidLocked(*work, endpoint, now)) {
      ++next;
      continue;
    }
    if (work->num_failures > 0) ++stats_.retries;
    BeginLocked(work, endpoint, /*is_hedge=*/false, now, actions);
    if (options_.hedge_after < absl::InfiniteDuration() && endpoints_.size() > 1) {
      unhedged_.push_back(work);
    }
    next = queue_.erase(next);
  }
}

bool RetryingClient::MustAvoidLocked(const Work& work, size_t endpoint, absl::Time now) const {
  return work.num_doubtful > 0 && work.last_endpoint == endpoint &&
         endpoints_.AnotherIsOpen(endpoint, now);
}

void RetryingClient::BeginLocked(const WorkPtr& work, size_t endpoint, bool is_hedge,
                                 absl::Time now, Actions* actions) {
  const bool is_probe = endpoints_.BeginAttempt(endpoint);
  ++num_active_;
  ++work->num_open;
  work->begun = now;
  work->endpoint = endpoint;
  const absl::Duration timeout = std::min(options_.request_timeout, BudgetEndLocked(*work) - now);
  actions->attempts.push_back({work, endpoint, is_probe, is_hedge, now, timeout});
}

void RetryingClient::HedgeLocked(absl::Time now, Actions* actions) {
  // Requests without an attempt come first.
  if (is_stopping_ || !queue_.empty()) return;
  for (auto next = unhedged_.begin(); next != unhedged_.end();) {
    const WorkPtr work = *next;
    if (work->begun + options_.hedge_after > now) return;  // the later ones are not due either
    const std::optional<size_t> endpoint = endpoints_.ChooseForHedge(work->endpoint, now);
    if (!endpoint.has_value()) {
      ++next;
      continue;
    }
    ++stats_.hedges;
    BeginLocked(work, *endpoint, /*is_hedge=*/true, now, actions);
    next = unhedged_.erase(next);
  }
}

void RetryingClient::RecordEndpointLocked(const Attempt& attempt,
                                          const ScoreTransport::Result& result, absl::Time now) {
  endpoints_.EndAttempt(attempt.endpoint, attempt.is_probe);
  if (is_stopping_) return;
  endpoints_.Count(attempt.endpoint, result, now - attempt.begun);
  if (IsEndpointFailure(result.scores.status())) {
    endpoints_.SetFailing(attempt.endpoint, result.scores.status(), now);
  } else {
    endpoints_.SetWorking(attempt.endpoint, now);
  }
  if (result.pushback.has_value()) {
    endpoints_.LeaveAlone(attempt.endpoint,
                          now + std::min(*result.pushback, options_.outage_budget));
  }
}

std::optional<RetryingClient::Answer> RetryingClient::RequeueLocked(
    Attempt attempt, const ScoreTransport::Result& result, absl::Time now) {
  WorkPtr work = std::move(attempt.work);
  if (is_stopping_) {
    if (work->num_open > 0) return std::nullopt;
    return Answer{std::move(work), Closing()};
  }
  const absl::Status error =
      Annotate(result.scores.status(),
               Concat(options_.endpoints[attempt.endpoint], ", ", Named(work->request)));
  const auto num_endpoints = static_cast<int64_t>(endpoints_.size());
  const Retry retry = RetryOf(result);
  const bool is_final = !options_.retry || retry == Retry::kNever ||
                        (retry == Retry::kDoubtful && work->num_doubtful >= num_endpoints) ||
                        (IsRefusal(error) && endpoints_.AllRefuse());
  if (is_final) work->final_error.Update(error);
  if (!work->final_error.ok()) {
    if (work->num_open > 0) return std::nullopt;  // the other attempt may be right
    return Answer{work, work->final_error};
  }
  if (retry == Retry::kDoubtful) ++work->num_doubtful;
  ++work->num_failures;
  work->last_error = error;
  work->last_endpoint = attempt.endpoint;
  work->first_failure = std::min(work->first_failure, now);
  if (work->num_open > 0) return std::nullopt;  // the other attempt decides
  if (BudgetEndLocked(*work) <= now) return GiveUpLocked(std::move(work));

  // Retry at once if an endpoint is left at which the request has not failed in this round.
  if (work->num_failures % num_endpoints == 0 || !endpoints_.AnotherIsOpen(attempt.endpoint, now)) {
    const int64_t round = (work->num_failures + num_endpoints - 1) / num_endpoints;
    work->not_before = now + backoff_.Pause(round);
  }
  // Put it at the front, because it has waited longer than the others.
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
  if (queue_.empty()) {
    // A request that is due but found no endpoint is considered again after the next answer.
    for (const WorkPtr& work : unhedged_) {
      const absl::Time due = work->begun + options_.hedge_after;
      if (due > now) return due;
    }
    return absl::InfiniteFuture();
  }
  absl::Time next = endpoints_.NextOpening(now);
  for (const WorkPtr& work : queue_) {
    for (const absl::Time time : {work->not_before, BudgetEndLocked(*work)}) {
      if (time > now) next = std::min(next, time);
    }
  }
  return next;
}

}  // namespace taopd
