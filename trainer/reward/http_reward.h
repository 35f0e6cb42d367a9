// Rewards from a server: the protocol, and the client, which sends one POST per request:
//
//   {"samples": [{"id": "...", "prompt": "...", "response": "...", "answer": "...",
//                 "source": "..."}, ...]}
//
// The answer is {"rewards": [{"id": "...", "reward": 0.5}, ...]} with one entry per sample, in any
// order. A server may add further members, which are not read. A request without samples asks
// whether the server is up.
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
#include <vector>

#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "trainer/config/reward_config.h"
#include "trainer/net/http_client.h"
#include "trainer/reward/reward_source.h"

namespace taopd {

// A reply beyond this size is refused.
inline constexpr int64_t kMaxRewardReplyBytes = int64_t{1} << 20;

// Bytes that are not UTF-8 become U+FFFD.
std::string RewardRequestBody(const std::vector<RewardSample>& samples);

// Returns the rewards in the order of the samples. Returns DATA_LOSS, naming the sample, if the
// body is not of the protocol: no JSON (which has no NaN and no infinity), no list of rewards, an
// entry without an id or a reward, a reward that is not a finite number of float32, an id that was
// not asked for or occurs twice, or a sample without a reward.
absl::StatusOr<std::vector<double>> ParseRewards(const std::string& body,
                                                 const std::vector<RewardSample>& samples);

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

  absl::Status Connect(absl::Duration timeout) override { return Ask({}, timeout).status(); }
  void Reward(std::vector<RewardSample> samples,
              std::function<void(absl::StatusOr<std::vector<double>>)> done) override;
  RewardStats stats() const override;
  // Answers the open requests with CANCELLED soon, and later ones immediately.
  void CancelAll();

 private:
  // Attempts a request until it succeeds, must not be retried, or `budget` is used up.
  absl::StatusOr<std::vector<double>> Ask(const std::vector<RewardSample>& samples,
                                          absl::Duration budget);
  absl::StatusOr<std::vector<double>> Attempt(const std::vector<RewardSample>& samples,
                                              const std::string& body, absl::Duration timeout,
                                              absl::Duration* retry_after);
  // Sleeps. Returns false, early, once CancelAll has been called.
  bool Pause(absl::Duration pause);
  void WarnOfOutage(const absl::Status& error);

  const HttpRewardOptions options_;
  HttpClient http_;
  mutable absl::Mutex mutex_;
  bool is_stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_failing_ ABSL_GUARDED_BY(mutex_) = false;  // the last attempt failed
  RewardStats stats_ ABSL_GUARDED_BY(mutex_);
  WorkerPool pool_;  // last, because its threads use the other members
};

}  // namespace taopd
