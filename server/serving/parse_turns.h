// Decides whose request body is parsed next. A parsed body takes many times the memory of its text,
// and parsing a large one takes seconds. So only a few bodies are parsed at once, clients take
// turns, and small bodies do not wait for large ones.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/clock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/base/sharing/turn_queue.h"
#include "server/serving/heap_trim.h"

namespace taopd {

// Thread-safe.
class ParseTurns {
 public:
  // Bodies of at most `max_bytes`, of which `num_turns` are parsed at once.
  struct Lane {
    size_t max_bytes;
    int num_turns;
  };
  static constexpr std::array<Lane, 3> kLanes = {
      {{size_t{64} << 10, 16}, {size_t{1} << 20, 4}, {SIZE_MAX, 2}}};

  // A turn lasts as long as the object, which should outlive the parsed value.
  class Turn {
   public:
    Turn(ParseTurns* turns, size_t lane, std::string client)
        : turns_(turns), lane_(lane), client_(std::move(client)) {}
    ~Turn() { turns_->End(lane_, client_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ParseTurns* const turns_;
    const size_t lane_;
    const std::string client_;
  };

  // `heap` is trimmed after bodies that are not small. It must outlive the object.
  explicit ParseTurns(HeapTrim* heap) : heap_(heap) {}

  // Waits for the turn of the client (server/net/client_name.h) with a body of that size.
  Turn Wait(const std::string& client, size_t body_bytes) {
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
  // Returns the number of waiting bodies.
  size_t num_waiting() const {
    absl::MutexLock lock(&mutex_);
    size_t num_waiting = 0;
    for (const Queue& queue : queues_) num_waiting += queue.size();
    return num_waiting;
  }

 private:
  struct Waiter {
    bool has_turn = false;
  };
  using Queue = TurnQueue<Waiter*>;

  void End(size_t lane, const std::string& client) {
    if (lane > 0) heap_->TrimGrowth(absl::Now());  // before the next body needs memory
    absl::MutexLock lock(&mutex_);
    Queue& queue = queues_[lane];
    queue.Done(client);
    GrantTurns(&queue);
  }
  static void GrantTurns(Queue* queue) {
    while (const std::optional<Waiter*> next = queue->Next()) (*next)->has_turn = true;
  }

  HeapTrim* const heap_;
  mutable absl::Mutex mutex_;
  std::array<Queue, kLanes.size()> queues_ ABSL_GUARDED_BY(mutex_) = {
      Queue(kLanes[0].num_turns), Queue(kLanes[1].num_turns), Queue(kLanes[2].num_turns)};
};

}  // namespace taopd
