// Watches the server's own listeners: connects to each of them from time to time and waits for an
// answer. A listener whose process has run out of file descriptors may stop to accept for good
// (gRPC 1.51), while everything else goes on.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"

namespace taopd {

struct WatchedListener {
  std::string name;  // in the verdict: "HTTP"
  std::string host;  // that the server listens on; a wildcard is asked by its loopback address
  int port = 0;
  std::string hello;  // what a client says first; the listener must then answer or hang up
};

// Opens a connection, says hello and waits until a byte comes or the listener hangs up: both show
// that somebody accepts connections and reads them, encrypted or not. Returns UNAVAILABLE if
// neither happens within `timeout`.
absl::Status ProbeListener(const WatchedListener& listener, absl::Duration timeout);

// What an HTTP/2 client says first, to which a gRPC server answers with its settings.
std::string Http2Hello();

// A thread that probes. Thread-safe.
class ListenerWatch {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(10);
    absl::Duration timeout = absl::Seconds(5);
    // A verdict turns bad after so many failures in a row, and good after one success.
    int num_failures = 3;
  };
  // `report` is called on the watch's thread whenever the verdict changes.
  ListenerWatch(std::vector<WatchedListener> listeners, const Options& options,
                std::function<void(const absl::Status&)> report);
  ~ListenerWatch();

 private:
  void Loop();
  absl::Status ProbeAll(std::vector<int>* num_failures) const;

  const std::vector<WatchedListener> listeners_;
  const Options options_;
  const std::function<void(const absl::Status&)> report_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace taopd
