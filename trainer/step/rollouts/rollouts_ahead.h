// The interface between a step and rollouts that are generated ahead of it.
// trainer/pipeline/rollout_pipeline.h implements it.
#pragma once

#include <cstdint>
#include <memory>

#include "trainer/step/scored_batch.h"
#include "trainer/step/timing/phase_times.h"

namespace taopd {

// Used by the training thread only. An abandoned step has cancelled the rollouts of the current
// weights, so the implementation must be restarted before the step is tried again.
class RolloutsAhead {
 public:
  virtual ~RolloutsAhead() = default;
  // Returns the batch of step `step` (0-based), all of whose rollouts are being generated or exist.
  virtual std::shared_ptr<ScoredBatch> Take(int64_t step) = 0;
  // Takes the student's weights after `num_steps` steps as a new version and starts the rollouts
  // that it generates. First waits until those of the version before are generated. Adds both times
  // to `times`, if it is not null. Returns the errors of the ranks' group; nothing is started then.
  virtual absl::Status StepDone(int64_t num_steps, PhaseTimes* times) = 0;
};

}  // namespace taopd
