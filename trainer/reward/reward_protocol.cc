#include "trainer/reward/reward_protocol.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "common/io/jsonl.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// The start of what a server sent, for messages.
std::string Shown(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).substr(0, 80);
}

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
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
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

}  // namespace taopd
