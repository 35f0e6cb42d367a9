#include "common/dist/collective_watch.h"

#include <absl/time/clock.h>

#include <exception>
#include <utility>

namespace taopd {

CollectiveWatch::CollectiveWatch(Options options)
    : options_(std::move(options)), thread_([this] { Loop(); }) {}

CollectiveWatch::~CollectiveWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stops_ = true;
  }
  thread_.join();
}

void CollectiveWatch::Add(Collective collective) {
  absl::MutexLock lock(&mutex_);
  pending_.push_back(std::move(collective));
}

void CollectiveWatch::Loop() {
  Collective failed;
  std::string error;
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stops_ || !pending_.empty();
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&has_work));
      if (stops_) return;
    }
    if (FindFailure(&failed, &error)) break;
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stops_), options_.poll)) return;
  }
  options_.on_failure(failed, error);
  {
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stops_), options_.grace)) return;
  }
  options_.on_stuck();
}

bool CollectiveWatch::FindFailure(Collective* failed, std::string* error) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (pending_.empty()) return false;
      *failed = pending_.front();
    }
    try {
      if (!failed->has_ended()) {
        error->clear();
        return absl::Now() >= failed->deadline;
      }
    } catch (const std::exception& thrown) {
      *error = thrown.what();
      return true;
    }
    *failed = {};  // it has ended, and its tensors are free
    absl::MutexLock lock(&mutex_);
    pending_.pop_front();
  }
}

}  // namespace taopd
