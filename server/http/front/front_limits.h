// The bounds of the HTTP front.
#pragma once

#include <absl/time/time.h>

#include <cstdint>

#include "server/http/parser/request_head.h"

namespace taopd {

struct FrontLimits {
  RequestLimits request;
  // Of all clients, and of one. When one more comes, the connection closes that has done nothing
  // for the longest time; if all have requests in work, the new one may only ask for probes.
  int max_connections = 4096;
  int max_connections_per_client = 1024;
  int num_threads = 256;  // that answer; started when they are needed
  // Of these threads, what one client may hold (WorkTurns).
  double max_client_worker_share = 0.5;
  int num_probe_threads = 2;

  absl::Duration handshake_timeout = absl::Seconds(10);  // of TLS
  absl::Duration idle_timeout = absl::Seconds(60);       // between requests
  absl::Duration head_timeout = absl::Seconds(10);       // from a request's first byte
  absl::Duration request_timeout = absl::Seconds(60);    // head and body
  absl::Duration linger_timeout = absl::Seconds(2);      // after the last answer
  // In each of these windows a body, or an answer, must make progress at this rate.
  absl::Duration read_window = absl::Seconds(5);
  absl::Duration write_window = absl::Seconds(30);
  int64_t min_bytes_per_second = 1024;
};

}  // namespace taopd
