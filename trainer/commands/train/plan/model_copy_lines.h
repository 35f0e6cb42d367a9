// The memory of further engines of the trainer's process over a model like the student's: of a
// teacher that is the student, and of evaluations beside training.
#pragma once

#include <vector>

#include "common/memory/memory_budget.h"
#include "common/memory/memory_line.h"
#include "common/model/config/dtype.h"
#include "common/model/config/model_config.h"
#include "trainer/config/train_config.h"

namespace taopd {

// Returns the lines that these engines add to the memory plan, none for a run without them:
//   teacher weights      the teacher's own weights with their packed copies, unless they are live
//   teacher engine       activations and logits of its engine
//   evaluation weights   the copy of the weights (eval.mode beside), with its packed copy
//   evaluation engine    the KV pool, and the activations and logits of a step; with eval.measure
//                        kl those of a forward pass
// The average of a teacher's weights is the optimizer's (TrainingPlanInput::keeps_average). `model`
// is the student's configuration, and `dtype` the type in which it is trained.
std::vector<MemoryLine> ModelCopyLines(const TrainConfig& config, const ModelConfig& model,
                                       DataType dtype, const MemoryBudget& budget);

}  // namespace taopd
