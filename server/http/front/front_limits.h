// The bounds of the HTTP front.
#pragma once

#include <absl/time/time.h>

#include <cstdint>

#include "server/http/parser/request_head.h"

namespace taopd {

struct FrontLimits {
  RequestLimits request;
  // The limits of all clients together and of one. If one more connection arrives, the one that has
  // been idle for the longest time is closed; if all have requests in progress, the new one may
  // only request probes.
  int max_connections = 4096;
  int max_connections_per_client = 1024;
  int num_threads = 256;  // worker threads, started on demand
  // The share of these threads that one client may hold (TurnQueue).
  double max_client_worker_share = 0.5;
  int num_probe_threads = 2;

  absl::Duration handshake_timeout = absl::Seconds(10);  // TLS handshake
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
