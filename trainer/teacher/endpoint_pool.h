// What a client knows about the endpoints of its teacher, and which of them gets the next request.
//
// An endpoint whose attempt failed is closed for a pause that doubles with every failed probe.
// After the pause it gets one request as a probe; a success opens it for all. An outage therefore
// costs one small probe per pause, however many requests wait. An endpoint that asks to be left
// alone (pushback) is closed for that time without being regarded as failing. An endpoint that
// serves another revision is left out like one that fails: a probe finds out when it is right
// again.
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
  // `backoff` outlives the pool.
  EndpointPool(const RetryOptions& options, Backoff* backoff);

  size_t size() const { return endpoints_.size(); }
  int64_t num_in_flight() const;
  // Since when every endpoint is failing; InfiniteFuture while one is not.
  absl::Time outage_since() const { return outage_since_; }

  // Some endpoint can take a request now.
  bool AnyOpen(absl::Time now) const;
  // Some endpoint is failing or has asked to be left alone.
  bool AnyClosed(absl::Time now) const;
  // Some endpoint other than `index` is neither failing nor left alone.
  bool AnotherWorks(size_t index, absl::Time now) const;
  // Every endpoint has said that it serves another revision.
  bool AllServeAnotherRevision() const;
  // The open endpoint with the fewest requests in flight; `last_failed`, which has just failed the
  // request, comes after all others. REQUIRES: AnyOpen(now).
  size_t Choose(std::optional<size_t> last_failed, absl::Time now) const;
  // The endpoint to ask beside `index`, which is slow: open, not failing, and with the fewest
  // requests in flight.
  std::optional<size_t> ChooseBeside(size_t index, absl::Time now) const;
  // When the next pause ends: later than `now`, or InfiniteFuture.
  absl::Time NextOpening(absl::Time now) const;

  // An attempt begins; true if it is a probe. Every BeginAttempt is followed by one EndAttempt.
  bool BeginAttempt(size_t index);
  void EndAttempt(size_t index, bool is_probe);
  // Adds what an attempt cost to the endpoint's statistics.
  void Count(size_t index, const ScoreTransport::Result& result, absl::Duration latency);

  // What an attempt or a question has shown. FAILED_PRECONDITION means another revision.
  void SetFailing(size_t index, const absl::Status& error, absl::Time now);
  void SetWorking(size_t index, absl::Time now);
  void LeaveAlone(size_t index, absl::Time until);

  std::vector<EndpointStats> stats(absl::Time now) const;

 private:
  struct Endpoint {
    EndpointStats stats;  // without the time of a failure that lasts
    int64_t num_in_flight = 0;
    bool is_failing = false;
    bool serves_another_revision = false;  // while failing: that is why
    absl::Time failing_since;
    bool is_probing = false;  // while failing: its one probe is in flight
    int64_t num_failed_probes = 0;
    absl::Time probe_at = absl::InfinitePast();
    absl::Time left_alone_until = absl::InfinitePast();
  };

  bool IsOpen(const Endpoint& endpoint, absl::Time now) const;

  const int64_t max_in_flight_per_endpoint_;
  Backoff* const backoff_;
  std::vector<Endpoint> endpoints_;
  absl::Time outage_since_ = absl::InfiniteFuture();
};

}  // namespace taopd
