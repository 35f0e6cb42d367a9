// The bandit's results as a JSON file, for `taopd-trainer report` and other programs.
//
//   {"format": "taopd-bandit-1", "support", "k", "steps", "seed", "learning_rate", "weight_decay",
//    "record_every", "initial_logits"[30],
//    "teacher": {"policy"[30], "support"[k], "tail"},
//    "runs": [{"objective", "policy"[30], "full_kl", "student_tail",      (the last three: at the
//    end)
//              "trajectory": {"step"[n], "full_kl"[n], "student_tail"[n], "logits"[n][30]}}]}
#pragma once

#include <string>

#include "common/base/status.h"
#include "trainer/bandit/bandit.h"

namespace taopd {

absl::Status WriteBanditFile(const BanditResult& result, const std::string& path);

// DATA_LOSS with the field for a file that does not hold that, with numbers that are not finite or
// with probabilities outside of [0, 1].
absl::StatusOr<BanditResult> ReadBanditFile(const std::string& path);

}  // namespace taopd
