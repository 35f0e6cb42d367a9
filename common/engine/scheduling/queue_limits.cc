#include "common/engine/scheduling/queue_limits.h"

#include <string>

#include "common/base/sharing/fair_share.h"

namespace taopd {
namespace {

// One of the two limits and the amounts that count against it.
struct Measure {
  const char* unit;
  const char* limit_name;
  int64_t limit;
  int64_t in_queue;
  int64_t client_amount;
  int64_t added;
  int64_t kept;  // for shorter requests

  int64_t free() const { return limit - in_queue - added - kept; }
  std::string KeptText() const {
    return kept == 0 ? "" : Concat(" less ", kept, " for shorter requests");
  }
};

absl::Status CheckQueue(const Measure& measure) {
  if (measure.free() >= 0) return absl::OkStatus();
  const bool exceeds_limit = measure.free() + measure.kept < 0;
  return ResourceExhausted("the queue holds ", measure.in_queue, " ", measure.unit, ": ",
                           measure.added, " more exceed ", measure.limit_name, " ", measure.limit,
                           exceeds_limit ? "" : measure.KeptText());
}

absl::Status CheckShare(const Measure& measure, double share) {
  const int64_t held = measure.client_amount + measure.added + measure.kept;
  if (FitsShare(held, measure.free(), share)) return absl::OkStatus();
  return ResourceExhausted("this client has ", measure.client_amount, " ", measure.unit,
                           " queued; ", measure.added,
                           " more would exceed its share (max_client_queue_share ", share, " of ",
                           measure.limit_name, " ", measure.limit, measure.KeptText(), ")");
}

}  // namespace

QueueDecision DecideQueue(const QueueLimits& limits, const QueueLoad& queue,
                          const QueueLoad& client, const QueueLoad& added) {
  // An empty queue must accept the largest batch that a share allows.
  const bool keeps = limits.max_client_share < 1.0 && queue.num_requests > 0;
  const Measure tokens = {"tokens",
                          "max_queued_tokens",
                          limits.max_tokens,
                          queue.num_tokens,
                          client.num_tokens,
                          added.num_tokens,
                          keeps ? KeptFree(added.num_tokens, limits.max_tokens) : 0};
  const Measure requests = {"requests",
                            "max_queued_requests",
                            limits.max_requests,
                            queue.num_requests,
                            client.num_requests,
                            added.num_requests,
                            keeps ? KeptFree(added.num_requests, limits.max_requests) : 0};
  const bool alone = added.num_requests == 1 && queue.num_requests == 0;
  if (absl::Status status = CheckQueue(tokens); !alone && !status.ok()) return {status};
  if (absl::Status status = CheckQueue(requests); !status.ok()) return {status};
  // Otherwise a long sequence could be refused for as long as others work.
  if (added.num_requests == 1 && client.num_requests == 0) return {};
  for (const Measure* measure : {&tokens, &requests}) {
    absl::Status status = CheckShare(*measure, limits.max_client_share);
    if (!status.ok()) return {status, /*only_client_share=*/true};
  }
  return {};
}

}  // namespace taopd
