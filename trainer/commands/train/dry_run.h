// train --dry-run: after the set-up, one batch goes through a step with a learning rate of 0.
//
// The step is the first one of the run: the same prompts, seeds, rollouts and scores, the same
// forward and backward pass, the same memory. Only the weights stay as they are, and nothing is
// written, neither records nor a skipped mini-batch.
#pragma once

#include "trainer/commands/train/training_parts.h"

namespace taopd {

// Takes one batch through such a step after the set-up, and prints what it measured. All ranks must
// call it.
absl::Status DryRun(TrainingParts& parts);

}  // namespace taopd
