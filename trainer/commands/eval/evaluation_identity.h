// Which evaluation a journal of responses belongs to.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "trainer/commands/commands.h"

namespace taopd {

// Describes what is asked and how it is judged: the settings, and the bytes of data.val.
absl::StatusOr<nlohmann::ordered_json> DescribeQuestions(const TrainConfig& config);

// Describes everything that decides the responses of an evaluation: the settings, the bytes of
// data.val, and the model. A server's model is described by URL and name, a model directory by the
// size and time of its weight files: hashing the weights would take longer than many evaluations.
// EvalJournal refuses to continue a journal with another description.
absl::StatusOr<nlohmann::ordered_json> DescribeEvaluation(const TrainConfig& config,
                                                          const EvalRequest& request,
                                                          const std::string& model);

}  // namespace taopd
