#include "server/serving/parse_turns.h"

#include <absl/time/clock.h>

namespace taopd {

ParseTurns::ParseTurns(HeapTrim* heap) : heap_(heap) {
  for (size_t i = 0; i < kLanes.size(); ++i) queues_[i].num_free = kLanes[i].num_turns;
}

ParseTurns::Turn ParseTurns::Wait(const std::string& client, size_t body_bytes) {
  size_t lane = 0;
  while (body_bytes > kLanes[lane].max_bytes) ++lane;
  Waiter waiter;
  {
    absl::MutexLock lock(&mutex_);
    Queue& queue = queues_[lane];
    queue.waiting.Push(client, &waiter);
    GrantTurns(&queue);
    mutex_.Await(absl::Condition(&waiter.has_turn));
  }
  return Turn(this, lane, client);
}

size_t ParseTurns::num_waiting() const {
  absl::MutexLock lock(&mutex_);
  size_t num_waiting = 0;
  for (const Queue& queue : queues_) num_waiting += queue.waiting.size();
  return num_waiting;
}

void ParseTurns::End(size_t lane, const std::string& client) {
  if (lane > 0) heap_->TrimGrowth(absl::Now());  // before the next body needs memory
  absl::MutexLock lock(&mutex_);
  Queue& queue = queues_[lane];
  queue.waiting.Done(client);
  ++queue.num_free;
  GrantTurns(&queue);
}

void ParseTurns::GrantTurns(Queue* queue) {
  for (; queue->num_free > 0 && queue->waiting.size() > 0; --queue->num_free)
    queue->waiting.Take()->has_turn = true;
}

}  // namespace taopd
