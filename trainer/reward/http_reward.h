// Rewards from a server (reward_protocol.h), one POST per request.
//
// A failed attempt is retried after a pause that doubles, up to kMaxPause:
//   no connection, the time limit, 408, 429, 5xx   until the outage budget is used up;
//   a reply that is not of the protocol            once;
//   everything else                                never.
// `done` then receives UNAVAILABLE, DATA_LOSS or FAILED_PRECONDITION.
//
// Threads: as RewardSource; `done` runs on a thread of this object.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/worker_pool.h"
#include "trainer/config/reward_config.h"
#include "trainer/http/http_client.h"
#include "trainer/reward/reward_source.h"

namespace taopd {

struct HttpRewardOptions : ClientCredentials {
  std::string url;  // as ParseHttpUrl takes it, for messages
  ServerAddress server;
  absl::Duration timeout = absl::Seconds(60);  // of one attempt
  absl::Duration outage_budget = absl::Minutes(30);
  absl::Duration first_pause = absl::Milliseconds(200);
  int64_t max_in_flight = 16;
};

class HttpReward final : public RewardSource {
 public:
  static constexpr absl::Duration kMaxPause = absl::Seconds(10);

  // Returns INVALID_ARGUMENT if the URL or the environment variable of the key cannot be used.
  static absl::StatusOr<std::unique_ptr<RewardSource>> Make(const RewardConfig& config);

  explicit HttpReward(HttpRewardOptions options);
  ~HttpReward() override;

  absl::Status Connect(absl::Duration timeout) override;
  void Reward(std::vector<RewardSample> samples,
              std::function<void(absl::StatusOr<std::vector<double>>)> done) override;
  RewardStats stats() const override;
  // Answers the open requests with CANCELLED soon, and later ones at once.
  void CancelAll();

 private:
  // Attempts a request until it succeeds, must not be retried, or `budget` is used up.
  absl::StatusOr<std::vector<double>> Ask(const std::vector<RewardSample>& samples,
                                          absl::Duration budget);
  absl::StatusOr<std::vector<double>> Attempt(const std::vector<RewardSample>& samples,
                                              const std::string& body, absl::Duration timeout,
                                              absl::Duration* retry_after);
  // Returns false if the object is being destroyed.
  bool Pause(absl::Duration pause);
  void WarnOfOutage(const absl::Status& error);

  const HttpRewardOptions options_;
  HttpClient http_;
  mutable absl::Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_failing_ ABSL_GUARDED_BY(mutex_) = false;  // the last attempt failed
  RewardStats stats_ ABSL_GUARDED_BY(mutex_);
  WorkerPool pool_;  // last, because its threads use the rest
};

}  // namespace taopd
