// The part of a teacher client that all transports share: a queue of requests, each of which is
// tried until it is answered or given up.
//
// retry_policy.h says which failures are retried, endpoint_pool.h which endpoint gets a request. A
// request is given up when its outage budget is used up. A request that has waited for its endpoint
// for hedge_after is sent to a second one as well. The first valid answer counts; the other is
// dropped. The request fails only after both attempts have failed.
//
// Threads: any thread may call. Transports call back on their own threads; one timer thread sleeps
// until the next pause or budget ends. No lock is held while `done` or the transport runs.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "trainer/teacher/endpoint_pool.h"
#include "trainer/teacher/retry_policy.h"
#include "trainer/teacher/score_transport.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

class RetryingClient {
 public:
  using Done = TeacherClient::Done;

  // `transport` and `clock` must outlive the client.
  RetryingClient(const RetryOptions& options, ScoreTransport* transport, Clock* clock);
  // Answers open requests with CANCELLED and waits for their `done`; see TeacherClient.
  ~RetryingClient();
  RetryingClient(const RetryingClient&) = delete;
  RetryingClient& operator=(const RetryingClient&) = delete;

  // From now on requests are checked against `info`. Before the first call, Score answers
  // FAILED_PRECONDITION.
  void SetInfo(const TeacherInfo& info);
  // Records whether an endpoint answered a query for its TeacherInfo.
  void SetReachability(size_t endpoint, const absl::Status& status);
  // See TeacherClient. `done` never runs inside this call, unless a test's transport does so.
  void Score(TeacherRequest request, Done done);
  TeacherClientStats stats() const;

 private:
  struct PendingRequest {
    TeacherRequest request;
    Done done;
    std::shared_ptr<const TeacherInfo> info;
    absl::Time submitted;
    absl::Time first_failure = absl::InfiniteFuture();
    absl::Time not_before = absl::InfinitePast();
    absl::Status last_error;
    absl::Status final_error;             // the first one after which nothing is retried
    std::optional<size_t> last_endpoint;  // endpoint of the last failure
    int64_t num_failures = 0;
    int64_t num_faults = 0;  // failures of the kind Retry::kOncePerEndpoint
    int64_t num_open = 0;    // attempts in flight; two with a hedge
    bool is_answered = false;
    absl::Time begun;  // the newest attempt
    size_t endpoint = 0;
  };
  using PendingPtr = std::shared_ptr<PendingRequest>;
  struct Attempt {
    PendingPtr pending;
    size_t endpoint;
    bool is_probe;
    bool is_hedge;
    absl::Time begun;
    absl::Duration timeout;
  };
  struct Answer {
    PendingPtr pending;
    absl::StatusOr<TeacherScores> scores;
  };
  // The work to do once the lock is released.
  struct Actions {
    std::vector<Attempt> attempts;
    std::vector<Answer> answers;
  };

  void RunTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(Actions actions) ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(Attempt attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnResult(Attempt attempt, ScoreTransport::Result result) ABSL_LOCKS_EXCLUDED(mutex_);

  void ScheduleLocked(absl::Time now, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginLocked(const PendingPtr& pending, size_t endpoint, bool is_hedge, absl::Time now,
                   Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a second attempt for requests whose first endpoint is slow.
  void HedgeLocked(absl::Time now, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether the request must wait for another endpoint than the one that answered wrongly.
  bool MustAvoidLocked(const PendingRequest& pending, size_t endpoint, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordEndpointLocked(const Attempt& attempt, const ScoreTransport::Result& result,
                            absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts the request back into the queue, or returns its answer if it is not retried.
  std::optional<Answer> RequeueLocked(Attempt attempt, const ScoreTransport::Result& result,
                                      absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Answer GiveUpLocked(PendingPtr pending) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireLocked(absl::Time now, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time BudgetEndLocked(const PendingRequest& pending) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns a time later than `now`, or InfiniteFuture.
  absl::Time NextWakeLocked(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RetryOptions options_;
  ScoreTransport* const transport_;
  Clock* const clock_;

  mutable absl::Mutex mutex_;
  absl::CondVar timer_wake_;
  std::shared_ptr<const TeacherInfo> info_ ABSL_GUARDED_BY(mutex_);
  Backoff backoff_ ABSL_GUARDED_BY(mutex_);
  EndpointPool endpoints_ ABSL_GUARDED_BY(mutex_);
  std::deque<PendingPtr> queue_ ABSL_GUARDED_BY(mutex_);  // oldest first
  // With one attempt in flight, the oldest first.
  std::deque<PendingPtr> unhedged_ ABSL_GUARDED_BY(mutex_);
  std::vector<Answer> refused_ ABSL_GUARDED_BY(mutex_);  // answered by the timer thread
  int64_t num_active_ ABSL_GUARDED_BY(mutex_) = 0;       // attempts and answers being delivered
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TeacherClientStats stats_ ABSL_GUARDED_BY(mutex_);
  const absl::Time created_at_;
  std::thread timer_;  // last, because it uses all of the above
};

}  // namespace taopd
