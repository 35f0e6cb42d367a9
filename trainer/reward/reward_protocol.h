// The protocol of reward servers: one POST with
//
//   {"samples": [{"id": "...", "prompt": "...", "response": "...", "answer": "...",
//                 "source": "..."}, ...]}
//
// whose answer is {"rewards": [{"id": "...", "reward": 0.5}, ...]} with one entry per sample, in
// any order. A server may add further members, which are not read. A request without samples asks
// whether the server is up.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
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

}  // namespace taopd
