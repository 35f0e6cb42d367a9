// Probes the teacher's /health five times a second, each time on a new connection, as Kubernetes
// does.
#pragma once

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <algorithm>
#include <atomic>

namespace taopd::testing {

// Returns the longest time of an answer once `stop` is set. Expects all answers to be 200.
inline absl::Duration WatchHealth(int port, const std::atomic<bool>& stop) {
  absl::Duration longest;
  while (!stop) {
    const absl::Time start = absl::Now();
    httplib::Client client("127.0.0.1", port);
    const auto answer = client.Get("/health");
    EXPECT_TRUE(answer && answer->status == 200);
    longest = std::max(longest, absl::Now() - start);
    absl::SleepFor(absl::Milliseconds(200));
  }
  return longest;
}

}  // namespace taopd::testing
