// A first-in first-out queue between threads, bounded by the summed cost of its items (tokens,
// bytes, or 1 each). Any number of producers and consumers.
//
// Life cycle: Close() refuses further pushes; consumers drain what is left and then see nullopt.
// An item whose cost alone exceeds the bound is accepted when the queue is empty, so that one large
// item cannot block for ever.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

namespace taopd {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(int64_t max_cost) : max_cost_(max_cost) {}

  // Waits for room. False when the queue is (or gets) closed; the item is then dropped.
  bool Push(T item, int64_t cost = 1) {
    absl::MutexLock lock(&mutex_);
    auto can_proceed = [&]()
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || Fits(cost); };
    mutex_.Await(absl::Condition(&can_proceed));
    return PushLocked(std::move(item), cost);
  }

  // Never waits. False when there is no room or the queue is closed; `item` is then untouched.
  bool TryPush(T&& item, int64_t cost = 1) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || !Fits(cost)) return false;
    return PushLocked(std::move(item), cost);
  }

  // Waits for an item; nullopt once the queue is closed and empty.
  std::optional<T> Pop() {
    absl::MutexLock lock(&mutex_);
    auto can_proceed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return closed_ || !items_.empty();
    };
    mutex_.Await(absl::Condition(&can_proceed));
    return PopLocked();
  }

  // Never waits; nullopt when there is nothing.
  std::optional<T> TryPop() {
    absl::MutexLock lock(&mutex_);
    return PopLocked();
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  int64_t cost() const {
    absl::MutexLock lock(&mutex_);
    return cost_;
  }
  int64_t size() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(items_.size());
  }

 private:
  bool Fits(int64_t cost) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return items_.empty() || cost_ + cost <= max_cost_;
  }
  bool PushLocked(T item, int64_t cost) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (closed_) return false;
    cost_ += cost;
    items_.emplace_back(std::move(item), cost);
    return true;
  }
  std::optional<T> PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front().first));
    cost_ -= items_.front().second;
    items_.pop_front();
    return item;
  }

  const int64_t max_cost_;
  mutable absl::Mutex mutex_;
  std::deque<std::pair<T, int64_t>> items_ ABSL_GUARDED_BY(mutex_);
  int64_t cost_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace taopd
