// Generates rollouts on other servers: gives each request to the worker (rollout_worker.h) that has
// the fewest, and asks another one when a worker is lost. A request's seed decides its response,
// so on CPUs of one kind the responses have the same bits on every worker.
//
//   worker      lost: Check fails, is repeated after a pause that doubles
//      |  Check answers
//      v
//   reachable   has no weights, or others than the run's current ones
//      |  SetWeights answers
//      v
//   ready       gets requests; back to reachable when the weights change or turn out to be others,
//               back to lost when a call fails
//   left out    for good: it cannot do what the run needs, its answers break the protocol, or they
//               come from other weights than were asked for
//
// A worker whose queue is full (RESOURCE_EXHAUSTED) is lost, too: it is not asked before its pause
// is over. Stats count the loss, and the log names it.
//
// Waiting requests fail with UNAVAILABLE if no worker has been ready for options.outage_budget, and
// with FAILED_PRECONDITION as soon as all workers are left out. Both errors name every worker and
// its last error. A request also fails, with its last error, after
//   five answers that were internal errors or exceeded the time limit;
//   20 refusals by ready workers over more than options.outage_budget (UNAVAILABLE);
//   20 answers from workers with other weights (FAILED_PRECONDITION).
//
// Threads: Generate, SetWeights, CancelAll and Connect are called by one thread; stats by any.
// `done` runs on threads of this object or, for requests that need no worker or get none, inside
// Generate or CancelAll. Each worker has one thread of its own for Check and SetWeights, and up to
// options.max_in_flight threads that wait for its responses.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <map>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/worker_pool.h"
#include "trainer/rollout/endpoints/rollout_worker.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

struct RemoteRolloutOptions {
  int64_t max_in_flight = 64;  // requests per worker
  absl::Duration outage_budget = absl::Minutes(30);
  absl::Duration first_pause = absl::Milliseconds(200);
  absl::Duration max_pause = absl::Seconds(5);
};

struct RemoteRolloutStats {
  int64_t num_workers = 0;
  int64_t num_reachable = 0;
  int64_t num_left_out = 0;
  int64_t num_unfinished = 0;  // requests that wait or run
  // Counted since the start:
  int64_t num_done = 0;         // responses
  int64_t num_asked_again = 0;  // requests that were sent again
  int64_t num_lost = 0;         // times that a worker was lost
};

class RemoteRolloutEngine final : public RolloutEngine {
 public:
  // `clock`, which must outlive the object, tells when a lost worker is asked again and when the
  // outage budget is used up. REQUIRES: there is a worker.
  RemoteRolloutEngine(std::vector<std::unique_ptr<RolloutWorker>> workers, RolloutNeeds needs,
                      const RemoteRolloutOptions& options, Clock* clock = Clock::Real());
  // Cancels the unfinished requests.
  ~RemoteRolloutEngine() override;

  // Waits until every worker has answered once, but at most `timeout` for workers that are lost.
  // Returns UNAVAILABLE if none answers, and the error of a worker that can never be used, with its
  // address.
  absl::Status Connect(absl::Duration timeout);

  // All later requests are for these weights. An error fails all of them. REQUIRES: no request
  // is unfinished, unless it was cancelled.
  void SetWeights(absl::StatusOr<std::shared_ptr<const PolicyWeights>> weights);

  // REQUIRES: the requests' policy_version is the step of the current weights.
  void Generate(std::vector<RolloutRequest> requests, Done done) override;
  void CancelAll() override;

  RemoteRolloutStats stats() const;
  // Returns whether PolicyWeights must have a probe.
  bool needs_probe() const;

 private:
  enum class State { kLost, kReachable, kLeftOut };
  struct Worker {
    std::unique_ptr<RolloutWorker> worker;
    State state = State::kLost;
    std::shared_ptr<const PolicyWeights> weights;  // null if not known
    int64_t num_running = 0;
    int64_t num_times_lost = 0;
    absl::Status error = absl::UnavailableError("it has not answered yet");  // the last one
    absl::Duration pause;
    absl::Time retry_at = absl::InfinitePast();
    bool was_asked = false;
    std::thread maintenance;
  };
  struct Job {
    int64_t index = 0;
    RolloutRequest request;
    std::shared_ptr<const Done> done;
    std::stop_token stop;
    int num_faults = 0;  // internal errors of workers, and answers that did not come in time
    int num_answers_with_other_weights = 0;
    int num_refusals = 0;  // by workers that were ready: UNAVAILABLE or CANCELLED
    absl::Time first_refused_at = absl::InfinitePast();
  };
  // Jobs and the errors to call their `done` with, once the lock is released.
  using FinishedJobs = std::vector<std::pair<Job, absl::Status>>;

  // The loop of a worker's maintenance thread: checks a lost worker and sends new weights.
  void Maintain(Worker* worker);
  bool IsReady(const Worker& worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return worker.state == State::kReachable && weights_.ok() && *weights_ != nullptr &&
           worker.weights == *weights_;
  }
  bool NeedsWeights(const Worker& worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return worker.state == State::kReachable && weights_.ok() && *weights_ != nullptr &&
           worker.weights != *weights_ && worker.num_running == 0;
  }
  // Records what Check or SetWeights returned.
  void RecordAnswer(const absl::Status& status, Worker* worker)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MarkLost(const absl::Status& error, Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveOut(const absl::Status& error, Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives waiting requests to ready workers.
  void Dispatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run(Worker* worker, uint64_t order, Job job,
           const std::shared_ptr<const PolicyWeights>& weights, int64_t num_times_lost);
  // Updates the worker after an error. Returns the status that the job ends with, or OK if it is to
  // be tried again.
  absl::Status HandleError(const absl::Status& error, int64_t num_times_lost, Job* job,
                           Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes and returns the waiting requests if no worker can answer them in time.
  FinishedJobs TakeUnanswerable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status DescribeWorkers(absl::StatusCode code) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void AnswerAll(FinishedJobs ended);

  const RolloutNeeds needs_;
  const RemoteRolloutOptions options_;
  Clock* const clock_;
  std::stop_source maintenance_stop_;
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Worker>> workers_;  // the pointers do not change
  absl::StatusOr<std::shared_ptr<const PolicyWeights>> weights_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<uint64_t, Job> waiting_ ABSL_GUARDED_BY(mutex_);  // by the order of arrival
  uint64_t next_order_ ABSL_GUARDED_BY(mutex_) = 0;
  std::stop_source requests_stop_ ABSL_GUARDED_BY(mutex_);
  // The last time at which a worker was ready, or at which nothing waited.
  absl::Time last_ready_ ABSL_GUARDED_BY(mutex_);
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  RemoteRolloutStats stats_ ABSL_GUARDED_BY(mutex_);
  WorkerPool pool_;  // last, because its threads use the other members
};

}  // namespace taopd
