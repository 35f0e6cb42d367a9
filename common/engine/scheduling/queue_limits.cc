#include "common/engine/scheduling/queue_limits.h"

#include "common/base/fair_share.h"

namespace taopd {
namespace {

absl::Status ExceedsShare(const char* what, int64_t held, int64_t added, const char* limit_name,
                          int64_t limit, double share) {
  return ResourceExhausted("the client's share of the queue holds ", held, " ", what, ": ", added,
                           " more exceed what max_client_queue_share ", share, " leaves it of ",
                           limit_name, " ", limit);
}

}  // namespace

QueueDecision DecideQueue(const QueueLimits& limits, const QueueLoad& queue,
                          const QueueLoad& client, const QueueLoad& added) {
  const bool alone = added.num_requests == 1 && queue.num_requests == 0;
  const int64_t free_tokens = limits.max_tokens - queue.num_tokens - added.num_tokens;
  if (!alone && free_tokens < 0) {
    return {ResourceExhausted("the queue holds ", queue.num_tokens, " tokens: ", added.num_tokens,
                              " more exceed max_queued_tokens ", limits.max_tokens)};
  }
  const int64_t free_requests = limits.max_requests - queue.num_requests - added.num_requests;
  if (free_requests < 0) {
    return {ResourceExhausted("the queue holds ", queue.num_requests,
                              " requests: ", added.num_requests,
                              " more exceed max_queued_requests ", limits.max_requests)};
  }
  // Otherwise a long sequence could be refused for as long as others work.
  if (added.num_requests == 1 && client.num_requests == 0) return {};
  const double share = limits.max_client_share;
  if (!FitsShare(client.num_tokens + added.num_tokens, free_tokens, share)) {
    return {ExceedsShare("tokens", client.num_tokens, added.num_tokens, "max_queued_tokens",
                         limits.max_tokens, share),
            true};
  }
  if (!FitsShare(client.num_requests + added.num_requests, free_requests, share)) {
    return {ExceedsShare("requests", client.num_requests, added.num_requests, "max_queued_requests",
                         limits.max_requests, share),
            true};
  }
  return {};
}

}  // namespace taopd
