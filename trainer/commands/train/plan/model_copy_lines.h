// The memory of a further engine of the trainer's process over a model like the student's: a
// teacher that is the student, or the evaluations beside training.
#pragma once

#include <string>
#include <vector>

#include "common/memory/engine_plan.h"
#include "common/memory/memory_line.h"
#include "trainer/config/train_config.h"

namespace taopd {

// The lines that the engine's own become: its weights with their packed copies, and what a step of
// it needs.
struct ModelCopyLines {
  MemoryItem weights, engine;
  std::string weights_note, engine_note;
};

// Returns the lines. If input.weights_are_parameters, the copy has parameters of its own, as a
// Decoder of GenerationWeights has: with student.lora only the adapters, since the base is shared
// with the student. Returns no lines if the engine cannot be planned: the plan of the rollouts'
// engine then names the problem.
std::vector<MemoryLine> LinesOfModelCopy(const TrainConfig& config, EnginePlanInput input,
                                         const ModelCopyLines& names);

}  // namespace taopd
