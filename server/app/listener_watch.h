// Watches the server's own listeners: connects to each of them from time to time and waits for an
// answer. After its process has run out of file descriptors, a listener may stop accepting for good
// (gRPC 1.51) while everything else works.
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
  std::string name;  // name in the verdict: "HTTP"
  // The server's listening address; for a wildcard, the loopback address is probed.
  std::string host;
  int port = 0;
  std::string hello;  // a client's first bytes, after which the listener must answer or hang up
};

// Opens a connection, sends `hello` and waits until a byte arrives or the listener hangs up. Both
// show that connections are accepted and read, encrypted or not. Tries the addresses of the host in
// turn. Returns UNAVAILABLE if neither happens at any of them within `timeout`. The look-up of the
// host's name is not limited.
absl::Status ProbeListener(const WatchedListener& listener, absl::Duration timeout);

// Returns the first bytes of an HTTP/2 client, which a gRPC server answers with its settings.
std::string Http2Hello();

// Probes on a thread of its own. Thread-safe.
class ListenerWatch {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(10);
    absl::Duration timeout = absl::Seconds(5);
    // The verdict becomes bad after this many consecutive failures, and good after one success.
    int num_failures = 3;
  };
  // `report` is called on the watch's thread whenever the verdict or its reason changes.
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
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace taopd
