#include "trainer/config/reward_config.h"

#include <cmath>

#include "taopd/objective/check_objective.h"
#include "trainer/config/run_config.h"
#include "trainer/grading/grader.h"
#include "trainer/net/server_address.h"

namespace taopd {
namespace {

std::vector<std::string> GraderNamesOrNone() {
  std::vector<std::string> names = grading::GraderNames();
  names.emplace_back("");
  return names;
}

// PPO's clips are parameters of the objective, and their rows there describe them.
void DeclareClip(const std::string& name, double* value, SettingTable& keys) {
  for (const ObjectiveParameter& parameter : kObjectiveParameters) {
    if (parameter.name != name) continue;
    keys.Add(name, value, std::string(parameter.summary),
             Must<double>(Concat("be ", parameter.range),
                          [&parameter](double number) { return parameter.IsInRange(number); }));
  }
}

}  // namespace

void RewardConfig::Declare(SettingTable& keys) {
  keys.Add("grader", &grader,
           "A grader of `taopd-trainer grade --list`, which rewards a response with 1 if it is "
           "right and 0 otherwise. If it is empty, the reward comes from url, or there is none.",
           OneOf(GraderNamesOrNone()))
      .DecidesScores();
  keys.Add("answer_pattern", &answer_pattern, "Same as eval.answer_pattern, but for reward.grader.")
      .DecidesScores();
  keys.Add("require_stop", &require_stop,
           "Whether reward.grader gives 0 to a response that is cut at data.max_response_length.")
      .DecidesScores();
  keys.AddMutable(
      "url", &url,
      "Server that rewards the responses, as an alternative to a grader, such as "
      "http://127.0.0.1:9000/rewards. It receives one POST request per prompt (docs/rewards.md).",
      [](const std::string& text) {
        return text.empty() ? absl::OkStatus() : ParseHttpUrl(text).status();
      });
  keys.Add("weight", &weight,
           "Factor by which the reward's term of the loss, policy_gradient, is multiplied.",
           Must<double>("be finite and not 0",
                        [](double factor) { return std::isfinite(factor) && factor != 0; }));
  keys.Add("baseline", &baseline,
           "Number subtracted from a reward: 0 (none), the mean over the responses to the prompt "
           "(group, as in GRPO), or the mean over the other responses (leave_one_out, as in RLOO).")
      .DecidesScores();
  keys.Add("scale", &scale,
           "Divisor of the difference: 1 (none), or the standard deviation over the responses to "
           "the prompt (std, as in GRPO), which needs the baseline group.")
      .DecidesScores();
  DeclareClip("clip_low", &clip_low, keys);
  DeclareClip("clip_high", &clip_high, keys);
  keys.AddMutable(
      "timeout_s", &timeout_s,
      "Time limit in seconds for one attempt to get the rewards of the responses to one prompt.",
      Between(0.001, 86400.0));
  keys.AddMutable("outage_budget_s", &outage_budget_s,
                  "Time in seconds for which a failed request is retried. After that, the run ends "
                  "with code 69.",
                  AtLeast(0.0));
  keys.AddMutable("connect_timeout_s", &connect_timeout_s,
                  "Time limit in seconds for the wait for the server of reward.url at the start.",
                  MoreThan(0.0));
  keys.AddMutable("max_in_flight", &max_in_flight,
                  "Maximum number of requests in flight at the server of reward.url.",
                  Between<int64_t>(1, 1024));
  keys.AddMutable("api_key_env", &api_key_env,
                  "Environment variable that holds the API key of the server of reward.url. The "
                  "key is sent as a bearer token.");
}

absl::Status CheckReward(const RewardConfig& reward, int64_t num_responses) {
  if (!reward.grader.empty() && !reward.url.empty())
    return InvalidArgument("reward.grader and reward.url: give one of them");
  if (!reward.answer_pattern.empty() && reward.grader.empty())
    return InvalidArgument("reward.answer_pattern is for reward.grader, which is empty");
  const std::string of_server = FirstGiven(
      reward,
      {"timeout_s", "outage_budget_s", "connect_timeout_s", "max_in_flight", "api_key_env"});
  if (reward.url.empty() && !of_server.empty())
    return InvalidArgument("reward.", of_server, " is for reward.url, which is empty");
  if (!reward.IsOn()) {
    const std::string given =
        FirstGiven(reward, {"weight", "baseline", "scale", "clip_low", "clip_high"});
    return given.empty() ? absl::OkStatus()
                         : InvalidArgument("reward.", given, " needs reward.grader or reward.url");
  }
  if (reward.scale == RewardScale::kStd && reward.baseline != RewardBaseline::kGroup) {
    return InvalidArgument("reward.scale = std: reward.baseline is ", NameOf(reward.baseline),
                           ", must be group; or set reward.scale to none");
  }
  if (reward.baseline != RewardBaseline::kNone && num_responses < 2) {
    return InvalidArgument("reward.baseline = ", NameOf(reward.baseline),
                           ": compares the responses to a prompt, so rollout.n = ", num_responses,
                           " must be at least 2");
  }
  return absl::OkStatus();
}

}  // namespace taopd
