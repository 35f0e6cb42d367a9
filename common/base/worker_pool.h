// Runs tasks on at least one and at most max_threads threads. A thread is started when more tasks
// wait than threads are idle. Tasks start in the order of arrival; on one thread, each ends before
// the next one starts. Thread-safe.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace taopd {

class WorkerPool {
 public:
  explicit WorkerPool(int max_threads) : max_threads_(max_threads) {
    threads_.emplace_back([this] { Run(); });
  }
  ~WorkerPool() { Shutdown(); }

  void Enqueue(absl::AnyInvocable<void()> task) {
    absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
    if (static_cast<int>(tasks_.size()) > num_idle_ &&
        static_cast<int>(threads_.size()) < max_threads_) {
      try {
        threads_.emplace_back([this] { Run(); });
      } catch (const std::system_error&) {
        // The system has no more threads, so the existing ones do the work.
      }
    }
  }
  // Runs the remaining tasks and ends the threads. Enqueue must not be called afterwards.
  void Shutdown() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !tasks_.empty() || stopping_;
  }
  void Run() {
    for (;;) {
      absl::AnyInvocable<void()> task;
      {
        absl::MutexLock lock(&mutex_);
        ++num_idle_;
        mutex_.Await(absl::Condition(this, &WorkerPool::HasWork));
        --num_idle_;
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  const int max_threads_;
  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  int num_idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // grows under mutex_, and only before Shutdown
};

}  // namespace taopd
