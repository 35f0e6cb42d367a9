#include "server/serving/parse_turns.h"

#include <absl/time/clock.h>

namespace taopd {

ParseTurns::Turn ParseTurns::Wait(const std::string& client, size_t body_bytes) {
  size_t lane = 0;
  while (body_bytes > kLanes[lane].max_bytes) ++lane;
  Waiter waiter;
  {
    absl::MutexLock lock(&mutex_);
    Queue& queue = queues_[lane];
    queue.Push(client, &waiter);
    GrantTurns(&queue);
    mutex_.Await(absl::Condition(&waiter.has_turn));
  }
  return Turn(this, lane, client);
}

size_t ParseTurns::num_waiting() const {
  absl::MutexLock lock(&mutex_);
  size_t num_waiting = 0;
  for (const Queue& queue : queues_) num_waiting += queue.size();
  return num_waiting;
}

void ParseTurns::End(size_t lane, const std::string& client) {
  if (lane > 0) heap_->TrimGrowth(absl::Now());  // before the next body needs memory
  absl::MutexLock lock(&mutex_);
  Queue& queue = queues_[lane];
  queue.Done(client);
  GrantTurns(&queue);
}

}  // namespace taopd
