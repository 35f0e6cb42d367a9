// The memory that evaluations beside training (eval.mode) add to the plan.
#pragma once

#include <vector>

#include "common/memory/memory_budget.h"
#include "common/memory/memory_line.h"
#include "common/model/config/dtype.h"
#include "common/model/config/model_config.h"
#include "trainer/config/train_config.h"

namespace taopd {

// Returns the lines, none for eval.mode blocking and for runs without evaluations:
//   evaluation weights   the copy of the weights, with its packed copy
//   evaluation engine    the KV pool, and the activations and logits of a step; with eval.measure
//                        kl those of a forward pass
// `model` is the student's configuration, and `dtype` the type in which it is trained.
std::vector<MemoryLine> EvaluationLines(const TrainConfig& config, const ModelConfig& model,
                                        DataType dtype, const MemoryBudget& budget);

}  // namespace taopd
