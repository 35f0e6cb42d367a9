#include "server/generation/delivery_thread.h"

#include <utility>

namespace taopd {

DeliveryThread::DeliveryThread() : thread_([this] { Run(); }) {}

DeliveryThread::~DeliveryThread() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void DeliveryThread::Post(absl::AnyInvocable<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void Deliver(DeliveryThread* thread, absl::AnyInvocable<void()> task) {
  if (thread == nullptr) {
    task();
  } else {
    thread->Post(std::move(task));
  }
}

void DeliveryThread::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  };
  while (true) {
    absl::AnyInvocable<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace taopd
