// Identifies the evaluation to which a journal of responses belongs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "trainer/commands/eval/eval_request.h"
#include "trainer/config/train_config.h"

namespace taopd {

// Describes the problems and the grading: the settings, and the bytes of data.val.
absl::StatusOr<nlohmann::ordered_json> DescribeQuestions(const TrainConfig& config);

// Describes everything that determines the responses of an evaluation: the settings, the bytes of
// data.val, and the model. A server's model is described by URL and name, and a model directory by
// the sizes and times of its weight files, because hashing the weights would take longer than many
// evaluations. EvalJournal refuses to continue a journal with another description.
absl::StatusOr<nlohmann::ordered_json> DescribeEvaluation(const TrainConfig& config,
                                                          const EvalRequest& request,
                                                          const std::string& model);

}  // namespace taopd
