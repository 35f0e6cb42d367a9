// The data of a distillation run.
#pragma once

#include "trainer/commands/train/setup/run_facts.h"
#include "trainer/commands/train/training_parts.h"

namespace taopd {

// Reads data.train and data.val, and checks the settings that depend on them. The position in the
// data is that of the state.
absl::Status LoadData(TrainingParts& parts);
// Returns the facts, besides the settings, that a resumed run shares with its checkpoint's run.
absl::StatusOr<RunFacts> FactsOfRun(const TrainingParts& parts);

}  // namespace taopd
