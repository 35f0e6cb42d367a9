// The weights that generate rollouts ahead of the steps: a copy in this process (GenerationWeights)
// or one that is published to other processes (PublishedWeights).
#pragma once

#include <cstdint>

namespace taopd {

class RolloutWeights {
 public:
  virtual ~RolloutWeights() = default;
  // Takes the student's current weights, which are `version` from then on: a number of steps, or
  // kLiveWeights, which generate no rollouts. An error shows in the rollouts that follow. REQUIRES:
  // no rollout of the previous version is unfinished, unless it was cancelled.
  virtual void Take(int64_t version) = 0;
  // Returns the version that was taken last. Any thread may call it.
  virtual int64_t version() const = 0;
};

}  // namespace taopd
