// A thread that turns the engine's results into messages and hands them to gRPC. Both copy every
// number of an answer, and the engine's thread, on which results arrive, computes nothing
// meanwhile.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <thread>

namespace taopd {

// Thread-safe.
class DeliveryThread {
 public:
  DeliveryThread();
  // Runs what has been posted.
  ~DeliveryThread();
  DeliveryThread(const DeliveryThread&) = delete;
  DeliveryThread& operator=(const DeliveryThread&) = delete;

  // Tasks run one after the other, in the order in which they were posted. They must not block.
  void Post(absl::AnyInvocable<void()> task);

 private:
  void Run();

  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

// Posts the task, or runs it at once if `thread` is null.
void Deliver(DeliveryThread* thread, absl::AnyInvocable<void()> task);

}  // namespace taopd
