#include <limits>
#include <utility>

#include "trainer/rollout/rollout_engine.h"

namespace taopd {

Rollout GivenRollout(RolloutRequest request) {
  Rollout rollout;
  rollout.prompt_ids = std::move(request.prompt_ids);
  rollout.response_ids = std::move(request.given_ids);
  rollout.behavior_log_probs.assign(rollout.response_ids.size(),
                                    std::numeric_limits<float>::quiet_NaN());
  rollout.finish = FinishReason::kStop;
  rollout.source = std::move(request.source);
  rollout.policy_version = request.policy_version;
  rollout.is_given = true;
  return rollout;
}

}  // namespace taopd
