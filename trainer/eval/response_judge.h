// Lets a server judge the responses of an evaluation (eval.grader is a URL) while others are still
// generated. The protocol is that of rewards (trainer/reward/http_reward.h); a response whose
// reward is above kCorrectnessThreshold is correct.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "trainer/eval/response_source.h"
#include "trainer/reward/http_reward.h"

namespace taopd {

inline constexpr double kCorrectnessThreshold = 0.5;

// Thread-safe. The destructor waits until every `done` has run.
class ResponseJudge {
 public:
  // Returns INVALID_ARGUMENT if the URL is malformed.
  static absl::StatusOr<std::unique_ptr<ResponseJudge>> Make(const std::string& url);
  explicit ResponseJudge(HttpRewardOptions options) : server_(std::move(options)) {}

  // Fills response.reward and passes it on, or passes on the server's error (http_reward.h).
  void Judge(const EvalTask& task, const std::string& prompt, EvalResponse response,
             std::function<void(absl::StatusOr<EvalResponse>)> done);
  // Ends the open requests soon, with CANCELLED.
  void Cancel() { server_.CancelAll(); }

 private:
  HttpReward server_;
};

}  // namespace taopd
