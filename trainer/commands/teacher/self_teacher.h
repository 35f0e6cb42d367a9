// The student as its own teacher, from the configuration.
#pragma once

#include <vector>

#include "common/memory/memory_budget.h"
#include "common/memory/memory_line.h"
#include "common/model/config/dtype.h"
#include "common/model/config/model_config.h"
#include "trainer/config/train_config.h"
#include "trainer/student/self_teacher.h"

namespace taopd {

SelfTeacherOptions MakeSelfTeacherOptions(const TrainConfig& config);

// Returns the lines that such a teacher adds to the memory plan, none if there is no such teacher:
//   teacher weights    its weights with their packed copies, unless they are live
//   teacher engine     activations and logits of its engine
// The average is the optimizer's (TrainingPlanInput::keeps_average). `model` is the student's
// configuration, and `dtype` the type in which it is trained.
std::vector<MemoryLine> SelfTeacherLines(const TrainConfig& config, const ModelConfig& model,
                                         DataType dtype, const MemoryBudget& budget);

}  // namespace taopd
