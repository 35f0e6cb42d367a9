// Moves scored rollouts from the rank that generated them to the rank that trains on them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

struct RolloutMove {
  int64_t sequence = 0;
  int64_t from = 0;  // a rank
  int64_t to = 0;    // another one
};

// All ranks must call it with the same moves, in ascending order of their sequences. `item` returns
// this rank's rollout of a sequence. Returns the rollouts that this rank receives, by sequence, or
// the errors of the group. The numbers that the loss reads are the same bit for bit. policy_version
// and the members about the teacher's prompt are not sent, because only the step's metrics need
// them, and each rank reports those of its own rollouts.
absl::StatusOr<std::map<int64_t, ScoredRollout>> MoveRollouts(
    const std::vector<RolloutMove>& moves,
    const std::function<const ScoredRollout&(int64_t sequence)>& item, ProcessGroup* group);

}  // namespace taopd
