// The data of a distillation run.
#pragma once

#include "trainer/commands/train/setup/run_facts.h"
#include "trainer/commands/train/training_parts.h"

namespace taopd {

// Reads data.train and data.val, and checks the settings that depend on them. The position in the
// data is that of the state.
absl::Status LoadData(TrainingParts& parts);
// What a resumed run must have in common with the run of its checkpoint, beside the settings.
absl::StatusOr<RunFacts> FactsOfRun(const TrainingParts& parts);

}  // namespace taopd
