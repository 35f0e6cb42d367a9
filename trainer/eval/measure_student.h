// Describes the held-out evaluation of a student, and runs it in this process.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "common/text/tokenizer/tokenizer.h"
#include "trainer/config/train_config.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Describes the problems and the grading: their settings, and the bytes of data.val.
absl::StatusOr<nlohmann::ordered_json> DescribeQuestions(TrainConfig config);

// The model that is measured, and the parts that measure it.
struct EvaluatedModel {
  Decoder* decoder = nullptr;            // for the KL divergence
  RolloutEngine* engine = nullptr;       // over the decoder; for the accuracy
  const Tokenizer* tokenizer = nullptr;  // for the accuracy
  TeacherClient* teacher = nullptr;      // for the KL divergence
};

// Measures eval.measure on `records`: the accuracy or the KL divergence to the teacher. Calls
// `on_wait`, unless it is empty, about once a second; an error from it ends the measurement and
// becomes the result. `part` is this process's part of an accuracy that several processes measure
// together. Results in `journal`, which may be null, are not measured again.
absl::StatusOr<EvalResult> MeasureStudent(const TrainConfig& config,
                                          const std::vector<PromptRecord>& records,
                                          const EvaluatedModel& model,
                                          std::function<absl::Status()> on_wait = nullptr,
                                          const AccuracyPart& part = {},
                                          EvalJournal* journal = nullptr);

}  // namespace taopd
