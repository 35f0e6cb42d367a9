// Puts a measured load on a teacher: random sequences, sent in a closed or an open loop.
//
// In a closed loop a number of requests is always in flight: each answer starts the next request.
// In an open loop requests arrive as a Poisson process of a given rate, whatever the teacher does.
// The latency counts from the arrival, so the wait behind a stalled teacher counts as well.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "trainer/teacher/teacher_client.h"

namespace taopd {

struct TeacherLoad {
  double requests_per_s = 0;  // 0 means a closed loop
  int64_t concurrency = 8;    // requests in flight in a closed loop
  int64_t num_requests = 100;
  absl::Duration duration = absl::ZeroDuration();  // used instead of num_requests if positive
  std::pair<int64_t, int64_t> prompt_tokens = {128, 128};  // shortest and longest, drawn evenly
  std::pair<int64_t, int64_t> response_tokens = {128, 128};
  int64_t vocab_size = 1000;  // ids are drawn evenly from [1, vocab_size)
  int32_t top_k = 16;
  float temperature = 1.0f;
  uint64_t seed = 0;
};

struct TeacherLoadResult {
  absl::Duration elapsed;                 // from the first request to the last answer
  std::vector<absl::Duration> latencies;  // latencies of the successful requests, ascending
  int64_t num_tokens = 0;                 // their tokens: prompts and responses
  int64_t num_scored_tokens = 0;          // their response tokens
  std::map<std::string, int64_t> errors;  // counts by the name of the status
  std::map<std::string, std::string> error_examples;
  int64_t num_requests() const;
  // Returns the smallest latency that a share `share` of the requests does not exceed, or zero if
  // there are none.
  absl::Duration Percentile(double share) const;
};

// Runs the load and waits for all answers. The client verifies every reply (verify_scores.h), so
// every success is verified. REQUIRES: client->Connect has succeeded; vocab_size > 1.
TeacherLoadResult RunTeacherLoad(const TeacherLoad& load, TeacherClient* client);

}  // namespace taopd
