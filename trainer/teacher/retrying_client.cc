#include "trainer/teacher/retrying_client.h"

#include <algorithm>
#include <utility>

#include "trainer/teacher/verify_scores.h"

namespace taopd {
namespace {

absl::Status Closing() { return absl::CancelledError("the teacher client is closing"); }

// Returns the name of a request in messages, such as: request "r1".
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
      created_at_(clock->Now()) {
  timer_ = std::thread([this] { RunTimer(); });
}

RetryingClient::~RetryingClient() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
    for (PendingPtr& pending : queue_) {
      refused_.push_back({std::move(pending), Closing()});
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
  stats.age = now - created_at_;
  stats.endpoints = endpoints_.stats(now);
  return stats;
}

void RetryingClient::Score(TeacherRequest request, Done done) {
  auto pending = std::make_shared<PendingRequest>();
  pending->request = std::move(request);
  pending->done = std::move(done);
  {
    absl::MutexLock lock(&mutex_);
    pending->info = info_;
    ++stats_.requests;
  }
  absl::Status status = FailedPrecondition("Score before Connect: the teacher is not known yet");
  if (pending->info != nullptr) {
    status = VerifyTeacherRequest(pending->request, *pending->info);
    if (status.ok()) status = transport_->Check(pending->request, *pending->info);
    status = Annotate(status, Named(pending->request));
  }

  Actions actions;
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok() && is_stopping_) status = Closing();
    if (!status.ok()) {
      // Answer on another thread, because the caller may hold a lock that `done` takes.
      refused_.push_back({std::move(pending), status});
      timer_wake_.Signal();
      return;
    }
    const absl::Time now = clock_->Now();
    pending->submitted = now;
    queue_.push_back(std::move(pending));
    ScheduleLocked(now, &actions);
    // Full endpoints need no timer, because the next answer frees a place. Closed ones and hedges
    // need it.
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
    answer.pending->done(std::move(answer.scores));
    answer.pending->done = nullptr;  // its captures must be destroyed before the client
    answer.pending.reset();
    absl::MutexLock lock(&mutex_);
    if (--num_active_ == 0 && is_stopping_) timer_wake_.Signal();
  }
}

void RetryingClient::Begin(Attempt attempt) {
  const PendingRequest& pending = *attempt.pending;
  const size_t endpoint = attempt.endpoint;
  const absl::Duration timeout = attempt.timeout;
  // std::function requires a copyable object, although it is called once.
  auto shared = std::make_shared<Attempt>(std::move(attempt));
  transport_->Start(endpoint, pending.request, *pending.info, timeout,
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
    std::erase(unhedged_, attempt.pending);
    --attempt.pending->num_open;
    std::optional<Answer> answer;
    if (attempt.pending->is_answered) {
      // The other attempt was faster.
    } else if (result.scores.ok()) {
      stats_.hedges_won += attempt.is_hedge;
      answer = Answer{std::move(attempt.pending), std::move(result.scores)};
    } else {
      answer = RequeueLocked(std::move(attempt), result, now);
      timer_wake_.Signal();
    }
    if (answer.has_value()) {
      answer->pending->is_answered = true;
      ++num_active_;
      stats_.failures += !answer->scores.ok();
      actions.answers.push_back(std::move(*answer));
    }
    attempt.pending.reset();
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
    const PendingPtr pending = *next;
    if (pending->not_before > now || BudgetEndLocked(*pending) <= now) {
      ++next;
      continue;
    }
    const size_t endpoint = endpoints_.Choose(pending->last_endpoint, now);
    if (MustAvoidLocked(*pending, endpoint, now)) {
      ++next;
      continue;
    }
    if (pending->num_failures > 0) ++stats_.retries;
    BeginLocked(pending, endpoint, /*is_hedge=*/false, now, actions);
    if (options_.hedge_after < absl::InfiniteDuration() && endpoints_.size() > 1) {
      unhedged_.push_back(pending);
    }
    next = queue_.erase(next);
  }
}

bool RetryingClient::MustAvoidLocked(const PendingRequest& pending, size_t endpoint,
                                     absl::Time now) const {
  return pending.num_faults > 0 && pending.last_endpoint == endpoint &&
         endpoints_.AnotherIsOpen(endpoint, now);
}

void RetryingClient::BeginLocked(const PendingPtr& pending, size_t endpoint, bool is_hedge,
                                 absl::Time now, Actions* actions) {
  const bool is_probe = endpoints_.BeginAttempt(endpoint);
  ++num_active_;
  ++pending->num_open;
  pending->begun = now;
  pending->endpoint = endpoint;
  const absl::Duration timeout =
      std::min(options_.request_timeout, BudgetEndLocked(*pending) - now);
  actions->attempts.push_back({pending, endpoint, is_probe, is_hedge, now, timeout});
}

void RetryingClient::HedgeLocked(absl::Time now, Actions* actions) {
  // Requests without an attempt come first.
  if (is_stopping_ || !queue_.empty()) return;
  for (auto next = unhedged_.begin(); next != unhedged_.end();) {
    const PendingPtr pending = *next;
    if (pending->begun + options_.hedge_after > now) return;  // the later ones are not due either
    const std::optional<size_t> endpoint = endpoints_.ChooseForHedge(pending->endpoint, now);
    if (!endpoint.has_value()) {
      ++next;
      continue;
    }
    ++stats_.hedges;
    BeginLocked(pending, *endpoint, /*is_hedge=*/true, now, actions);
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
    endpoints_.PauseUntil(attempt.endpoint,
                          now + std::min(*result.pushback, options_.outage_budget));
  }
}

std::optional<RetryingClient::Answer> RetryingClient::RequeueLocked(
    Attempt attempt, const ScoreTransport::Result& result, absl::Time now) {
  PendingPtr pending = std::move(attempt.pending);
  if (is_stopping_) {
    if (pending->num_open > 0) return std::nullopt;
    return Answer{std::move(pending), Closing()};
  }
  const absl::Status error =
      Annotate(result.scores.status(),
               Concat(options_.endpoints[attempt.endpoint], ", ", Named(pending->request)));
  const auto num_endpoints = static_cast<int64_t>(endpoints_.size());
  const Retry retry = RetryOf(result);
  const bool is_final =
      !options_.retry || retry == Retry::kNever ||
      (retry == Retry::kOncePerEndpoint && pending->num_faults >= num_endpoints) ||
      (IsRefusal(error) && endpoints_.AllRefuse());
  if (is_final) pending->final_error.Update(error);
  if (!pending->final_error.ok()) {
    if (pending->num_open > 0) return std::nullopt;  // the other attempt may be right
    return Answer{pending, pending->final_error};
  }
  if (retry == Retry::kOncePerEndpoint) ++pending->num_faults;
  ++pending->num_failures;
  pending->last_error = error;
  pending->last_endpoint = attempt.endpoint;
  pending->first_failure = std::min(pending->first_failure, now);
  if (pending->num_open > 0) return std::nullopt;  // the other attempt decides
  if (BudgetEndLocked(*pending) <= now) return GiveUpLocked(std::move(pending));

  // Retry immediately if the request has not yet failed at some endpoint in this round.
  if (pending->num_failures % num_endpoints == 0 ||
      !endpoints_.AnotherIsOpen(attempt.endpoint, now)) {
    const int64_t round = (pending->num_failures + num_endpoints - 1) / num_endpoints;
    pending->not_before = now + backoff_.PauseAfter(round);
  }
  // Put it at the front, because it has waited longer than the others.
  queue_.push_front(std::move(pending));
  return std::nullopt;
}

RetryingClient::Answer RetryingClient::GiveUpLocked(PendingPtr pending) const {
  const absl::Status status =
      Unavailable(Named(pending->request), " is given up after ", pending->num_failures,
                  pending->num_failures == 1 ? " failed attempt" : " failed attempts",
                  ": outage_budget ", absl::FormatDuration(options_.outage_budget), " is used up; ",
                  pending->last_error.ok() ? "every endpoint fails"
                                           : "last error: " + pending->last_error.ToString());
  return {std::move(pending), status};
}

void RetryingClient::ExpireLocked(absl::Time now, Actions* actions) {
  for (PendingPtr& pending : queue_) {
    if (BudgetEndLocked(*pending) > now) continue;
    actions->answers.push_back(GiveUpLocked(std::move(pending)));
    ++stats_.failures;
    ++num_active_;
  }
  std::erase(queue_, nullptr);
}

absl::Time RetryingClient::BudgetEndLocked(const PendingRequest& pending) const {
  return std::min(pending.first_failure, std::max(endpoints_.outage_since(), pending.submitted)) +
         options_.outage_budget;
}

absl::Time RetryingClient::NextWakeLocked(absl::Time now) const {
  if (queue_.empty()) {
    // A request that is due but found no endpoint is considered again after the next answer.
    for (const PendingPtr& pending : unhedged_) {
      const absl::Time due = pending->begun + options_.hedge_after;
      if (due > now) return due;
    }
    return absl::InfiniteFuture();
  }
  absl::Time next = endpoints_.NextOpening(now);
  for (const PendingPtr& pending : queue_) {
    for (const absl::Time time : {pending->not_before, BudgetEndLocked(*pending)}) {
      if (time > now) next = std::min(next, time);
    }
  }
  return next;
}

}  // namespace taopd
