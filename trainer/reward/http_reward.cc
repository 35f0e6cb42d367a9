#include "trainer/reward/http_reward.h"

#include <absl/time/clock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "common/base/log.h"
#include "common/io/jsonl.h"
#include "trainer/net/server_replies.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// Returns the start of a value that a server sent, for messages.
std::string Shown(const nlohmann::json& value) { return JsonText(value).substr(0, 80); }

}  // namespace

std::string RewardRequestBody(const std::vector<RewardSample>& samples) {
  Json body = {{"samples", Json::array()}};
  for (const RewardSample& sample : samples) {
    body["samples"].push_back({{"id", sample.id},
                               {"prompt", sample.prompt},
                               {"response", sample.response},
                               {"answer", sample.answer},
                               {"source", sample.source}});
  }
  return JsonText(body);
}

absl::StatusOr<std::vector<double>> ParseRewards(const std::string& body,
                                                 const std::vector<RewardSample>& samples) {
  const auto reply = ParseJson(body, "the reply");
  if (!reply.ok()) {
    return DataLoss(reply.status().message(),
                    " (JSON has no NaN and no infinity; a reward is a finite number)");
  }
  if (!reply->is_object() || !reply->contains("rewards") || !reply->at("rewards").is_array())
    return DataLoss("the reply has no list \"rewards\": ", Shown(*reply));
  std::unordered_map<std::string, size_t> place_of_id;
  for (size_t i = 0; i < samples.size(); ++i) place_of_id[samples[i].id] = i;
  std::vector<double> rewards(samples.size());
  std::vector<bool> has_reward(samples.size(), false);
  for (const nlohmann::json& entry : reply->at("rewards")) {
    if (!entry.is_object() || !entry.contains("id") || !entry.at("id").is_string())
      return DataLoss("an entry of \"rewards\" has no \"id\" that is text: ", Shown(entry));
    const auto id = entry.at("id").get<std::string>();
    const auto found = place_of_id.find(id);
    if (found == place_of_id.end())
      return DataLoss("the reply has a reward of \"", id, "\", which was not asked for");
    if (has_reward[found->second]) return DataLoss("the reply has two rewards of \"", id, "\"");
    if (!entry.contains("reward")) return DataLoss("the entry of \"", id, "\" has no \"reward\"");
    const nlohmann::json& reward = entry.at("reward");
    if (!reward.is_number() || !std::isfinite(static_cast<float>(reward.get<double>()))) {
      return DataLoss("the reward of \"", id, "\" is ", Shown(reward), ", must be a finite number");
    }
    has_reward[found->second] = true;
    rewards[found->second] = reward.get<double>();
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!has_reward[i]) return DataLoss("the reply has no reward of \"", samples[i].id, "\"");
  }
  return rewards;
}

absl::StatusOr<std::unique_ptr<RewardSource>> HttpReward::Make(const RewardConfig& config) {
  HttpRewardOptions options;
  options.url = config.url;
  TAOPD_ASSIGN_OR_RETURN(options.server,
                         Annotate(ParseHttpUrl(config.url), Concat("reward.url = ", config.url)));
  if (options.api_key_env = config.api_key_env; !options.api_key_env.empty()) {
    TAOPD_ASSIGN_OR_RETURN(options.api_key, ApiKeyFrom(options.api_key_env, "reward.api_key_env"));
  }
  options.timeout = absl::Seconds(config.timeout_s);
  options.outage_budget = absl::Seconds(config.outage_budget_s);
  options.max_in_flight = config.max_in_flight;
  return std::make_unique<HttpReward>(std::move(options));
}

HttpReward::HttpReward(HttpRewardOptions options)
    : options_(std::move(options)),
      http_({options_.server}, options_),
      pool_(static_cast<int>(options_.max_in_flight)) {}

void HttpReward::CancelAll() {
  {
    absl::MutexLock lock(&mutex_);
    is_stopping_ = true;
  }
  http_.CancelAll();
}

HttpReward::~HttpReward() {
  CancelAll();
  pool_.Shutdown();
}

void HttpReward::Reward(std::vector<RewardSample> samples,
                        std::function<void(absl::StatusOr<std::vector<double>>)> done) {
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.requests;
  }
  pool_.Enqueue([this, samples = std::move(samples), done = std::move(done)] {
    done(Ask(samples, options_.outage_budget));
  });
}

RewardStats HttpReward::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

absl::StatusOr<std::vector<double>> HttpReward::Ask(const std::vector<RewardSample>& samples,
                                                    absl::Duration budget) {
  const std::string body = RewardRequestBody(samples);
  const absl::Time start = absl::Now();
  absl::Duration pause = options_.first_pause;
  int64_t num_malformed = 0;
  for (int64_t num_attempts = 1;; ++num_attempts) {
    absl::Duration retry_after;
    const absl::Duration left = std::max(budget - (absl::Now() - start), absl::Milliseconds(1));
    // Without a budget, one attempt still gets its full time.
    const absl::Duration timeout =
        budget == absl::ZeroDuration() ? options_.timeout : std::min(options_.timeout, left);
    auto rewards = Attempt(samples, body, timeout, &retry_after);
    if (rewards.ok()) {
      absl::MutexLock lock(&mutex_);
      is_failing_ = false;
      return rewards;
    }
    const absl::Status error = Annotate(rewards.status(), options_.url);
    const bool is_transient = IsTransient(error);
    if (absl::IsCancelled(error)) return error;
    if (!is_transient && !absl::IsDataLoss(error)) return FailedPrecondition(error.message());
    if (absl::IsDataLoss(error) && ++num_malformed > 1) return error;
    const absl::Duration wait = std::max(pause, std::min(retry_after, kMaxRetryAfter));
    if (is_transient && absl::Now() - start + wait >= budget) {
      return Unavailable("after ", num_attempts,
                         num_attempts == 1 ? " attempt: " : " attempts: ", error.message());
    }
    WarnOfOutage(error);
    if (!Pause(wait)) return absl::CancelledError("the reward client is closing");
    pause = std::min(2 * pause, kMaxPause);
    absl::MutexLock lock(&mutex_);
    ++stats_.retries;
  }
}

absl::StatusOr<std::vector<double>> HttpReward::Attempt(const std::vector<RewardSample>& samples,
                                                        const std::string& body,
                                                        absl::Duration timeout,
                                                        absl::Duration* retry_after) {
  // The client puts the URL's path in front, without a slash at its end.
  const bool ends_with_slash = options_.server.prefix.empty() || options_.url.ends_with('/');
  const std::string path = ends_with_slash ? "/" : "";
  TAOPD_ASSIGN_OR_RETURN(const HttpReply reply,
                         http_.Exchange(/*server=*/0, path, body, kMaxRewardReplyBytes, timeout));
  if (reply.status == 200) return ParseRewards(reply.body, samples);
  *retry_after = reply.retry_after.value_or(absl::ZeroDuration());
  return ErrorOfReply(reply, options_);
}

bool HttpReward::Pause(absl::Duration pause) {
  absl::MutexLock lock(&mutex_);
  const auto is_stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return is_stopping_; };
  return !mutex_.AwaitWithTimeout(absl::Condition(&is_stopping), pause);
}

// Warns once per outage, however many requests wait.
void HttpReward::WarnOfOutage(const absl::Status& error) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(is_failing_, true)) return;
  }
  LogWarning("the reward server gives no usable answer; it is asked again", {{"error", error}});
}

}  // namespace taopd
