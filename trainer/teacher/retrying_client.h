// The part of a teacher client that is the same for every transport: which endpoint gets which
// request, how many are in flight, what is tried again and when, and when a request is given up.
//
// Choice: the open endpoint with the fewest requests in flight, one that has not just failed this
// request first. An endpoint whose attempt failed (UNAVAILABLE, DEADLINE_EXCEEDED, ...) is closed
// for a pause that doubles with every failed probe, then gets one request as a probe; a success
// opens it for all. So an outage costs one small probe per pause, however many requests wait. An
// overloaded endpoint (RESOURCE_EXHAUSTED with a pushback time) is left alone for that time, at
// most for the outage budget.
//
// Retries, by status of the attempt:
//   UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED, ABORTED  until the budget is
//   used up DATA_LOSS (a reply that failed verification), INTERNAL, UNKNOWN         once everything
//   else, and a negative pushback                               never
// Scoring is idempotent, so a request that was possibly computed already may be sent again.
//
// Threads: transports call back on their own threads; one timer thread sleeps until the next pause
// or budget ends. No lock is held while `done` or the transport runs.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/random.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// One attempt at one endpoint.
class ScoreTransport {
 public:
  struct Result {
    absl::StatusOr<TeacherScores> scores;
    std::optional<absl::Duration> pushback;  // negative: the endpoint asks not to try again
  };
  virtual ~ScoreTransport() = default;
  // INVALID_ARGUMENT for a request that this transport can never carry.
  virtual absl::Status Check(const TeacherRequest& request, const TeacherInfo& info) const = 0;
  // Calls `done` once, on any thread, within about `timeout`; also after CancelAll. `scores` are
  // verified by the transport. `request` and `info` live until then. Calling it from inside of
  // Start is for tests: the next request then starts in the same stack.
  virtual void Start(size_t endpoint, const TeacherRequest& request, const TeacherInfo& info,
                     absl::Duration timeout, std::function<void(Result)> done) = 0;
  // Ends what is in flight, and everything that is started later, soon.
  virtual void CancelAll() = 0;
};

struct RetryOptions {
  std::vector<std::string> endpoint_names;  // one per endpoint, for messages
  int64_t max_in_flight_per_endpoint = 64;
  absl::Duration request_timeout;
  absl::Duration outage_budget;
  absl::Duration initial_backoff;
  absl::Duration max_backoff;
  uint64_t jitter_seed = 0;
};

class RetryingClient {
 public:
  using Done = std::function<void(absl::StatusOr<TeacherScores>)>;

  // `transport` and `clock` outlive the client.
  RetryingClient(const RetryOptions& options, ScoreTransport* transport, Clock* clock);
  ~RetryingClient();  // see TeacherClient
  RetryingClient(const RetryingClient&) = delete;
  RetryingClient& operator=(const RetryingClient&) = delete;

  // From now on requests are checked against `info`. Before, Score gives FAILED_PRECONDITION.
  void SetInfo(const TeacherInfo& info);
  // What asking an endpoint for its TeacherInfo showed.
  void SetReachability(size_t endpoint, const absl::Status& status);
  void Score(TeacherRequest request, Done done);
  TeacherClientStats stats() const;

 private:
  struct Work {
    TeacherRequest request;
    Done done;
    std::shared_ptr<const TeacherInfo> info;
    absl::Time submitted;
    absl::Time first_failure = absl::InfiniteFuture();
    absl::Time not_before = absl::InfinitePast();
    absl::Status last_error;
    std::optional<size_t> last_endpoint;  // that failed
    int64_t num_failures = 0;
    int64_t num_doubtful = 0;  // failures of the kind that is tried again once
  };
  using WorkPtr = std::unique_ptr<Work>;
  struct Endpoint {
    int64_t in_flight = 0;
    bool is_failing = false;
    bool is_probing = false;  // while failing: its one probe is in flight
    int64_t num_failed_probes = 0;
    absl::Time probe_at = absl::InfinitePast();
    absl::Time paused_until = absl::InfinitePast();  // asked for by the endpoint
  };
  struct Attempt {
    WorkPtr work;
    size_t endpoint;
    bool is_probe;
    absl::Duration timeout;
  };
  struct Answer {
    WorkPtr work;
    absl::StatusOr<TeacherScores> scores;
  };
  // What is to be done once the lock is released.
  struct Actions {
    std::vector<Attempt> attempts;
    std::vector<Answer> answers;
  };

  void RunTimer() ABSL_LOCKS_EXCLUDED(mutex_);
  void Perform(Actions actions) ABSL_LOCKS_EXCLUDED(mutex_);
  void Begin(Attempt attempt) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnResult(Attempt attempt, ScoreTransport::Result result) ABSL_LOCKS_EXCLUDED(mutex_);

  void ScheduleLocked(absl::Time now, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordEndpointLocked(const Attempt& attempt, const ScoreTransport::Result& result,
                            absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Puts the work back into the queue, or answers it when it is not tried again.
  std::optional<Answer> RequeueLocked(Attempt attempt, const ScoreTransport::Result& result,
                                      absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Answer GiveUpLocked(WorkPtr work) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireLocked(absl::Time now, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: one is open.
  size_t ChooseEndpointLocked(const Work& work, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOpenLocked(const Endpoint& endpoint, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetFailingLocked(size_t index, const absl::Status& error, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetWorkingLocked(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time BudgetEndLocked(const Work& work) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Later than `now`, or InfiniteFuture.
  absl::Time NextWakeLocked(absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration JitteredLocked(int64_t num_failures) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RetryOptions options_;
  ScoreTransport* const transport_;
  Clock* const clock_;

  mutable absl::Mutex mutex_;
  absl::CondVar timer_wake_;
  std::shared_ptr<const TeacherInfo> info_ ABSL_GUARDED_BY(mutex_);
  std::vector<Endpoint> endpoints_ ABSL_GUARDED_BY(mutex_);
  std::deque<WorkPtr> queue_ ABSL_GUARDED_BY(mutex_);    // oldest first
  std::vector<Answer> refused_ ABSL_GUARDED_BY(mutex_);  // answered by the timer thread
  // Since when every endpoint is failing; InfiniteFuture while one is not.
  absl::Time outage_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  int64_t num_active_ ABSL_GUARDED_BY(mutex_) = 0;  // attempts and answers being delivered
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  TeacherClientStats stats_ ABSL_GUARDED_BY(mutex_);
  RandomStream jitter_ ABSL_GUARDED_BY(mutex_);
  std::thread timer_;  // last: it uses all of the above
};

}  // namespace taopd
