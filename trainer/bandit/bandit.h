// The paper's synthetic experiment (appendix, "Synthetic experiment"): a student of 30 logits
// learns a fixed bimodal distribution under an objective, by AdamW on the exact gradient of the
// logits. It shows an objective's minimum within seconds and without a language model.
//
// Teacher: q(v) is proportional to exp(-(v - 10)^2 / 8) + 0.88 exp(-(v - 20)^2 / 8), v = 1..30. Arm
// v has index v - 1. Student: logits drawn from N(0, 0.01^2). An objective that reads a sampled
// token gets one draw per step from the student; cross_entropy gets a draw from the teacher.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/settings.h"
#include "taopd/objective/objective.h"

namespace taopd::bandit {

inline constexpr int32_t kNumArms = 30;

struct Options {
  // The policy whose top-k is the support. The student's top-k is taken anew at each step.
  enum class Support { kTeacher, kStudent, kUnion };
  Support support = Support::kTeacher;
  // In [1, kNumArms].
  int32_t k = 8;
  int64_t steps = 20000;
  // Seeds the initial logits and the draws.
  uint64_t seed = 0;
  // The paper's value.
  double learning_rate = 1e-3;
  // The default of PyTorch's AdamW, like betas and epsilon.
  double weight_decay = 0.01;
  // The number of steps between two points of a trajectory.
  int64_t record_every = 100;
  // [kNumArms]; drawn if empty.
  std::vector<double> initial_logits;
};

inline EnumNames<Options::Support> NamesOf(Options::Support) {
  using Support = Options::Support;
  return {
      {Support::kTeacher, "teacher"}, {Support::kStudent, "student"}, {Support::kUnion, "union"}};
}

struct TrajectoryPoint {
  // 0 is the start.
  int64_t step = 0;
  // [kNumArms]
  std::vector<double> logits;
  // Reverse KL over all arms, in nats.
  double full_kl = 0;
  // The student's probability outside the teacher's top-k, whatever the support is.
  double student_tail = 0;
};

struct ObjectiveRun {
  std::string objective;
  // [kNumArms] The final policy.
  std::vector<double> policy;
  // The first point is the start, the last one the end.
  std::vector<TrajectoryPoint> trajectory;
};

struct Result {
  // The given options, with the initial logits filled in.
  Options options;
  // [kNumArms] probabilities.
  std::vector<double> teacher;
  // [k] indices of arms.
  std::vector<int32_t> teacher_support;
  double teacher_tail = 0;
  // In the order of the names.
  std::vector<ObjectiveRun> runs;
};

// Returns the teacher's probabilities, [kNumArms].
std::vector<double> TeacherPolicy();

// Runs each objective from the same initial logits. The same options give the same numbers. Returns
// INVALID_ARGUMENT if an objective is unknown or an option is out of its range.
absl::StatusOr<Result> RunBandit(const std::vector<std::string>& objectives,
                                 const Options& options);

// Returns INVALID_ARGUMENT for any other name than those of NamesOf.
absl::StatusOr<Options::Support> ParseSupport(const std::string& name);

}  // namespace taopd::bandit
