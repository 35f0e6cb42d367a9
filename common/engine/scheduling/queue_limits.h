// Whether the queue in front of the engine takes more work, and from whom. Pure functions.
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

// `queue`: all that waits; `client`: what of it belongs to the client that asks; `added`: what it
// asks for, all or nothing. One request of any length is taken while the queue is empty. While it
// is not, and where clients have shares (max_client_share below 1), the queue and the client's
// share need room not only for what is asked for but also for what KeptFree
// (common/base/fair_share.h) keeps for shorter requests. REQUIRES: the limits and the requests are
// at least 1.
QueueDecision DecideQueue(const QueueLimits& limits, const QueueLoad& queue,
                          const QueueLoad& client, const QueueLoad& added);

}  // namespace taopd
