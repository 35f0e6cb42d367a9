// Probes the teacher's /health five times a second, each time on a new connection, as Kubernetes
// does.
#pragma once

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>

namespace taopd::testing {

// Expects all answers to be 200 and to come within a second, until `stop` is set.
inline void WatchHealth(int port, const std::atomic<bool>& stop) {
  while (!stop) {
    const absl::Time start = absl::Now();
    httplib::Client client("127.0.0.1", port);
    const auto answer = client.Get("/health");
    EXPECT_TRUE(answer && answer->status == 200);
    EXPECT_LT(absl::Now() - start, absl::Seconds(1));
    absl::SleepFor(absl::Milliseconds(200));
  }
}

}  // namespace taopd::testing
