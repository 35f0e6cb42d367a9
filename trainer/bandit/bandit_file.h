// The bandit's results as a JSON file, for `taopd-trainer report` and other programs:
//
//   {"format": "taopd-bandit-1",
//    "support", "k", "steps", "seed", "learning_rate", "weight_decay", "record_every",
//    "initial_logits": [30],
//    "teacher": {"policy": [30], "support": [k], "tail"},
//    "runs": [{"objective", "policy": [30], "full_kl", "student_tail",
//              "trajectory": {"step": [n], "full_kl": [n], "student_tail": [n],
//                             "logits": [n, 30]}}]}
//
// The policy, "full_kl" and "student_tail" of a run are those at its end.
#pragma once

#include <string>

#include "common/base/status.h"
#include "trainer/bandit/bandit.h"

namespace taopd::bandit {

// Writes the file atomically.
absl::Status WriteResult(const Result& result, const std::string& path);

// Returns DATA_LOSS, naming the field, if the file has another form, a number that is not finite,
// or a probability outside [0, 1].
absl::StatusOr<Result> ReadResult(const std::string& path);

}  // namespace taopd::bandit
