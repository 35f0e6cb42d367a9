// Rollouts of a run that other processes generate.
#pragma once

#include "trainer/setup/training/training_parts.h"

namespace taopd {

// Makes the workers of this rank: endpoint i belongs to rank i modulo the number of ranks, so that
// every server has one source of weights. The same holds for rollout.eval_endpoints. Does not
// connect. Does nothing without endpoints.
absl::Status MakeRemoteRollouts(TrainingParts* parts);
// Waits for the servers of rollouts, and of evaluations. REQUIRES: the snapshot of evaluations
// beside training is made if there are any.
absl::Status ConnectRemoteRollouts(TrainingParts* parts);

}  // namespace taopd
