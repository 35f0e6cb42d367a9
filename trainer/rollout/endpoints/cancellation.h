// Ends blocking calls of other threads. Thread-safe.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <functional>
#include <list>
#include <utility>

namespace taopd {

class Cancellation {
 public:
  // Keeps a function registered while it exists.
  class Hook {
   public:
    // `on_cancel` runs once: on the thread that calls Cancel, or at once if that has happened. It
    // must not block, and must not call the Cancellation. The Cancellation must outlive the hook.
    Hook(const Cancellation* cancellation, std::function<void()> on_cancel)
        : cancellation_(cancellation), place_(cancellation->Register(std::move(on_cancel))) {}
    // After the destructor, `on_cancel` does not run and is not running.
    ~Hook() { cancellation_->Unregister(place_); }
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

   private:
    const Cancellation* const cancellation_;
    const std::list<std::function<void()>>::iterator place_;
  };

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    for (std::function<void()>& hook : hooks_) {
      if (hook) std::exchange(hook, nullptr)();
    }
  }
  bool is_cancelled() const {
    absl::MutexLock lock(&mutex_);
    return is_cancelled_;
  }
  // Waits for `duration`, or until it is cancelled. Returns whether it is.
  bool WaitFor(absl::Duration duration) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_cancelled_), duration);
  }

 private:
  std::list<std::function<void()>>::iterator Register(std::function<void()> hook) const {
    absl::MutexLock lock(&mutex_);
    if (is_cancelled_) {
      hook();
      hook = nullptr;
    }
    return hooks_.insert(hooks_.end(), std::move(hook));
  }
  void Unregister(std::list<std::function<void()>>::iterator place) const {
    absl::MutexLock lock(&mutex_);
    hooks_.erase(place);
  }

  mutable absl::Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  mutable std::list<std::function<void()>> hooks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace taopd
