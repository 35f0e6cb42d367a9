// The trainer's view of a judge of responses: the responses to a prompt go in, a number for each
// comes out. Implementations: a grader of this process (MakeGraderReward) and a server in any
// language (http_reward.h).
//
// Threads: any thread may call it. `done` runs once per request, on the caller's thread or on one
// of the source; it must not block.
//
// End: destroying the source answers the open requests with CANCELLED and waits for their `done`.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/config/reward_config.h"

namespace taopd {

struct RewardSample {
  std::string id;  // unique within a run
  std::string prompt;
  std::string response;
  std::string answer;  // empty if the row has none
  std::string source;  // the data set of the prompt
  // Whether the response was cut at its limit. It is not sent to a server.
  bool is_truncated = false;
};

struct RewardStats {
  int64_t requests = 0;
  int64_t retries = 0;  // attempts beyond each request's first
};

class RewardSource {
 public:
  virtual ~RewardSource() = default;
  // Waits up to `timeout` for the source to answer a request without samples. Returns the error of
  // the last attempt.
  virtual absl::Status Connect(absl::Duration timeout) = 0;
  // Judges `samples`. The result has one finite number per sample, in their order.
  virtual void Reward(std::vector<RewardSample> samples,
                      std::function<void(absl::StatusOr<std::vector<double>>)> done) = 0;
  virtual RewardStats stats() const = 0;
};

// Makes a source that asks a grader: 1 for a right response, else 0. A response to a row without an
// answer is never right, and neither is a truncated one if config.require_stop is set. Reward calls
// `done` before it returns. Returns INVALID_ARGUMENT if the grader cannot be made. REQUIRES:
// config.grader is not empty.
absl::StatusOr<std::unique_ptr<RewardSource>> MakeGraderReward(const RewardConfig& config);

}  // namespace taopd
