// The rules by which failed attempts are retried, and the pauses before retries. Scoring is
// idempotent, so a request can be sent again even if a teacher may have computed it already.
//
// Retries, by the status of the attempt:
//   UNAVAILABLE, RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED, CANCELLED, ABORTED
//       until the outage budget is used up;
//   FAILED_PRECONDITION (the endpoint serves another revision), UNAUTHENTICATED, PERMISSION_DENIED
//   (it refuses the API key)
//       until the outage budget is used up, unless every endpoint refuses in one of these ways;
//   DATA_LOSS (a reply that failed verification), INTERNAL, UNKNOWN
//       as often as there are endpoints;
//   every other status, and any status with a negative pushback
//       never.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "trainer/teacher/score_transport.h"

namespace taopd {

struct RetryOptions {
  // Servers of the same model, all of one protocol (transport/teacher_protocols.h).
  std::vector<std::string> endpoints;
  absl::Duration request_timeout = absl::Seconds(120);  // limit of one attempt
  // Limit of one request, attempts and pauses together, counted from its first failure. For a
  // request that waits in the client, the time in which every endpoint fails counts as well.
  absl::Duration outage_budget = absl::Minutes(30);
  int64_t max_in_flight_per_endpoint = 64;  // requests beyond it wait in the client
  // The n-th pause is uniform in [0, min(max_backoff, initial_backoff * 2^(n-1))].
  absl::Duration initial_backoff = absl::Milliseconds(250);
  absl::Duration max_backoff = absl::Seconds(30);
  // If false, the first failure of a request is its answer; for measurements.
  bool retry = true;
  // After this time without an answer, a second endpoint is asked as well; never if infinite.
  absl::Duration hedge_after = absl::InfiniteDuration();
  uint64_t jitter_seed = 0;  // of the pauses
};

enum class Retry { kNever, kOncePerEndpoint, kUntilBudget };

// Returns the kind of retry after a failed attempt. REQUIRES: the attempt has failed.
Retry RetryOf(const ScoreTransport::Result& result);

// Returns whether the endpoint itself has failed. Every other status, including OK, shows that it
// answers.
bool IsEndpointFailure(const absl::Status& status);

// Returns whether the endpoint refuses every request until someone changes it: it serves another
// revision or does not accept the API key.
bool IsRefusal(const absl::Status& status);

// Draws random pauses whose limit doubles with every failure, so that clients do not retry in step.
// Not thread-safe.
class Backoff {
 public:
  explicit Backoff(const RetryOptions& options);
  // Returns the pause after the n-th failure, n >= 1 (RetryOptions::initial_backoff).
  absl::Duration PauseAfter(int64_t num_failures);

 private:
  const absl::Duration initial_;
  const absl::Duration max_;
  RandomStream jitter_;
};

}  // namespace taopd
