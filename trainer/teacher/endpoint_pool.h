// Tracks the endpoints of a client's teacher and chooses the endpoint for the next request.
//
// An endpoint whose attempt failed is closed for a random pause, whose limit doubles with every
// failed probe up to max_backoff. After the pause it gets one request as a probe; a success opens
// it for all. An outage therefore costs one small probe per pause, however many requests wait. An
// endpoint that requests a pause (pushback) is closed for that time without counting as failing. An
// endpoint that serves another revision or refuses the API key is treated like a failing one: a
// probe notices when it is right again.
//
// Not thread-safe: RetryingClient holds its lock.
#pragma once

#include <absl/time/time.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/teacher/retry_policy.h"

namespace taopd {

class EndpointPool {
 public:
  // `backoff` must outlive the pool.
  EndpointPool(const RetryOptions& options, Backoff* backoff);

  size_t size() const { return endpoints_.size(); }
  int64_t num_in_flight() const;
  // Returns the time since which every endpoint is failing, or InfiniteFuture while one is not.
  absl::Time outage_since() const { return outage_since_; }

  // Returns whether some endpoint can take a request now.
  bool AnyOpen(absl::Time now) const;
  // Returns whether some endpoint is failing or has requested a pause.
  bool AnyClosed(absl::Time now) const;
  // Returns whether some endpoint other than `index` is neither failing nor paused.
  bool AnotherIsOpen(size_t index, absl::Time now) const;
  // Returns whether every endpoint refuses all requests (IsRefusal in retry_policy.h).
  bool AllRefuse() const;
  // Returns the open endpoint with the fewest requests in flight. Returns `last_failed`, at which
  // the request has just failed, only if no other is open. REQUIRES: AnyOpen(now).
  size_t Choose(std::optional<size_t> last_failed, absl::Time now) const;
  // Returns the endpoint for a second attempt because `index` is slow: of the others that are open
  // and not failing, the one with the fewest requests in flight.
  std::optional<size_t> ChooseForHedge(size_t index, absl::Time now) const;
  // Returns the end of the next pause, which is later than `now`, or InfiniteFuture.
  absl::Time NextOpening(absl::Time now) const;

  // Records the start of an attempt and returns whether it is a probe. Every BeginAttempt must be
  // followed by one EndAttempt.
  bool BeginAttempt(size_t index);
  void EndAttempt(size_t index, bool is_probe);
  // Adds an attempt to the endpoint's statistics.
  void Count(size_t index, const ScoreTransport::Result& result, absl::Duration latency);

  // Record the outcome of an attempt or a query. FAILED_PRECONDITION means another revision, and
  // UNAUTHENTICATED or PERMISSION_DENIED that the API key is refused.
  void SetFailing(size_t index, const absl::Status& error, absl::Time now);
  void SetWorking(size_t index, absl::Time now);
  void PauseUntil(size_t index, absl::Time until);

  std::vector<EndpointStats> stats(absl::Time now) const;

 private:
  struct Endpoint {
    EndpointStats stats;  // without the time of a current failure
    int64_t num_in_flight = 0;
    bool is_failing = false;
    // The code of a failing endpoint's refusal; kOk if it does not refuse.
    absl::StatusCode refusal = absl::StatusCode::kOk;
    absl::Time failing_since;
    bool is_probing = false;  // the single probe of a failing endpoint is in flight
    int64_t num_failed_probes = 0;
    absl::Time probe_at = absl::InfinitePast();
    absl::Time paused_until = absl::InfinitePast();
  };

  bool IsOpen(const Endpoint& endpoint, absl::Time now) const;

  const int64_t max_in_flight_per_endpoint_;
  Backoff* const backoff_;
  std::vector<Endpoint> endpoints_;
  absl::Time outage_since_ = absl::InfiniteFuture();
};

}  // namespace taopd
