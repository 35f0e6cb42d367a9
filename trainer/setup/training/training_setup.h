// Makes the parts of a distillation run (training_parts.h): everything that can refuse a run before
// its first step. Nothing of an old run changes.
//
// All ranks call the same functions in the same order. Connect may fail on one of them alone.
#pragma once

#include "trainer/run/resume/run_facts.h"
#include "trainer/setup/training/training_parts.h"

namespace taopd {

// Makes the checks that need only the configuration, plans the memory, and chooses the settings
// that are `auto`.
absl::Status CheckAndPlan(TrainingParts* parts);
// Loads the student, from a checkpoint or as a new one, into the parts' run.
absl::Status LoadStudentOfRun(const StartMode& mode, TrainingParts* parts);
// Reads data.train and data.val, and checks the settings that depend on them. The position in the
// data is that of the state.
absl::Status LoadData(TrainingParts* parts);
// Returns the facts, besides the settings, that a resumed run shares with its checkpoint's run.
absl::StatusOr<RunFacts> FactsOfRun(TrainingParts* parts);
// Loads the data, connects to the teacher, and starts the engine and, on rank 0, the control
// server.
absl::Status Connect(TrainingParts* parts);

}  // namespace taopd
