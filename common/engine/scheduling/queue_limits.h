// Decides whether the queue in front of the engine accepts more work of a client. Pure functions.
#pragma once

#include <cstdint>

#include "common/base/status.h"

namespace taopd {

struct QueueLimits {
  int64_t max_tokens = 0;
  int64_t max_requests = 0;
  // See EngineOptions::max_client_queue_share.
  double max_client_share = 1.0;
};

// An amount of waiting work.
struct QueueLoad {
  int64_t num_tokens = 0;
  int64_t num_requests = 0;
};

struct QueueDecision {
  absl::Status status;             // OK, or RESOURCE_EXHAUSTED naming the limit
  bool only_client_share = false;  // refused, but the queue itself had room
};

// Decides about `added`, all or nothing. `queue` is all waiting work, and `client` the part of it
// that belongs to the requesting client. An empty queue accepts one request of any length.
// Otherwise, if clients have shares (max_client_share below 1), the queue and the client's share
// need room for `added` and for the amount that KeptFree (fair_share.h) keeps for
// shorter requests. REQUIRES: the limits and the requests are at least 1.
QueueDecision DecideQueue(const QueueLimits& limits, const QueueLoad& queue,
                          const QueueLoad& client, const QueueLoad& added);

}  // namespace taopd
