// The paper's synthetic experiment (appendix, "Synthetic experiment"): a student that is 30 logits
// learns a fixed bimodal distribution under an objective, with AdamW on the exact gradient of the
// logits. It shows in seconds what an objective's minimum is, apart from any language model.
//
// Teacher: q(v) proportional to exp(-(v - 10)^2 / 8) + 0.88 exp(-(v - 20)^2 / 8), v = 1..30 (arm v
// is index v - 1). Student: logits drawn from N(0, 0.01^2). Objectives that read a sampled token
// get one draw a step, from the student; cross_entropy gets it from the teacher.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "taopd/objective/objective.h"

namespace taopd {

inline constexpr int32_t kNumArms = 30;

struct BanditOptions {
  enum class Support { kTeacher, kStudent, kUnion };  // whose top-k; the student's of each step
  Support support = Support::kTeacher;
  int32_t k = 8;
  int64_t steps = 20000;
  uint64_t seed = 0;                   // of the initial logits and the draws
  double learning_rate = 1e-3;         // the paper's
  double weight_decay = 0.01;          // PyTorch's default of AdamW, as are its betas and epsilon
  int64_t record_every = 100;          // steps between the points of a trajectory
  std::vector<double> initial_logits;  // empty: drawn
};

struct BanditPoint {
  int64_t step = 0;            // 0 is the start
  std::vector<double> logits;  // [kNumArms]
  double full_kl = 0;          // reverse KL over all arms, nats
  double student_tail = 0;     // the student's probability outside of the TEACHER's top-k
};

struct BanditRun {
  std::string objective;
  std::vector<double> policy;           // [kNumArms], at the end
  std::vector<BanditPoint> trajectory;  // first the start, last the end
};

struct BanditResult {
  BanditOptions options;
  std::vector<double> teacher;           // [kNumArms] probabilities
  std::vector<int32_t> teacher_support;  // [k] arms from 0
  double teacher_tail = 0;
  std::vector<BanditRun> runs;  // in the order of the names
};

// The teacher's probabilities.
std::vector<double> BanditTeacher();

// INVALID_ARGUMENT for an unknown objective, k outside of [1, kNumArms] and other options out of
// range. The same options give the same numbers.
absl::StatusOr<BanditResult> RunBandit(const std::vector<std::string>& objectives,
                                       const BanditOptions& options);

// "teacher", "student", "union" and back.
absl::StatusOr<BanditOptions::Support> ParseBanditSupport(const std::string& name);
std::string NameOf(BanditOptions::Support support);

}  // namespace taopd
