// Watches collectives that run on a GPU's stream, for which the host does not wait.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

namespace taopd {

// A collective hangs on the device if a rank does not take part. The host then hangs as well, in
// its next call that waits for the device, so this object has a thread of its own that notices.
//
// Collectives end in the order in which they are added. Thread-safe.
class CollectiveWatch {
 public:
  struct Collective {
    std::string name;  // for messages, as is the number
    int64_t number = 0;
    absl::Time deadline;
    // Returns whether it has ended on the device, or throws its error. Called on the watch's
    // thread.
    std::function<bool()> has_ended;
  };
  struct Options {
    absl::Duration poll = absl::Milliseconds(20);
    absl::Duration grace = absl::Seconds(8);
    // Called when a collective fails, with its error, or misses its deadline, with an empty error.
    // The process then has `grace` to end.
    std::function<void(const Collective&, const std::string& error)> on_failure;
    // Called if the process has not ended after `grace`: its other threads wait for the device.
    std::function<void()> on_stuck;
  };

  explicit CollectiveWatch(Options options);
  // Ends the thread. No callback runs after the destructor returns.
  ~CollectiveWatch();
  CollectiveWatch(const CollectiveWatch&) = delete;
  CollectiveWatch& operator=(const CollectiveWatch&) = delete;

  void Add(Collective collective);

 private:
  void Loop();
  // Drops collectives that have ended. Returns whether the first of the others failed, with its
  // error, or is late, with an empty one.
  bool FindFailure(Collective* failed, std::string* error);

  const Options options_;
  absl::Mutex mutex_;
  std::deque<Collective> pending_ ABSL_GUARDED_BY(mutex_);
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace taopd
