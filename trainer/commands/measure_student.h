// Runs the held-out evaluation of a student in this process.
#pragma once

#include <functional>
#include <vector>

#include "common/base/status.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/student/student.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Measures eval.measure on `records`: accuracy, for which `teacher` may be null, or the KL
// divergence to the teacher, for which `engine` may be null. Calls `on_wait`, unless it is empty,
// about once a second; an error from it ends the measurement and becomes the result. The accuracy
// may be one part of several. Results in `journal`, which may be null, are not measured again.
absl::StatusOr<EvalResult> MeasureStudent(
    const TrainConfig& config, const std::vector<PromptRecord>& records, Student* student,
    RolloutEngine* engine, TeacherClient* teacher, std::function<absl::Status()> on_wait = nullptr,
    const EvalPart& part = {}, EvalJournal* journal = nullptr);

}  // namespace taopd
