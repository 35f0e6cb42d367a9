// Settings of the collapse guard (trainer/guard/collapse_guard.h).
#pragma once

#include <cstdint>
#include <string>

#include "common/config/settings.h"
#include "trainer/config/run_config.h"

namespace taopd {

// The action of a guard whose alarm has lasted; kNone: there is no alarm. In ascending order of
// severity.
enum class GuardAction { kNone, kWarn, kPause, kStop, kRollBack };
inline SettingWords<GuardAction> WordsOf(GuardAction) {
  return {{GuardAction::kWarn, "warn"},
          {GuardAction::kPause, "pause"},
          {GuardAction::kStop, "stop"},
          {GuardAction::kRollBack, "roll_back"}};
}

// When one watched quantity is alarming, and what is done about it.
struct GuardRuleConfig {
  double limit = 0;
  GuardAction action = GuardAction::kWarn;
  void Visit(SettingVisitor& v) {
    v.Setting("limit", &limit, "Limit of the alarm; 0 = this guard is off.", AtLeast(0.0))
        .MayChange();
    v.Setting("action", &action, "warn, pause, stop (code 76) or roll_back.").MayChange();
  }
};

inline constexpr size_t kNumProbes = 8;      // responses on which policy/kl_to_start is measured
inline constexpr int64_t kMaxRollbacks = 3;  // one more ends the run

struct GuardConfig {
  GuardRuleConfig tail_ratio{.limit = 10};
  GuardRuleConfig low_entropy{.limit = 0.05};
  GuardRuleConfig high_entropy{.limit = 5};
  GuardRuleConfig long_responses{.limit = 5};
  GuardRuleConfig short_responses{.limit = 0.1};
  GuardRuleConfig repetition{.limit = 0.9};
  GuardRuleConfig kl_to_start;
  int64_t baseline_steps = 5;
  int64_t patience = 3;
  int64_t kl_every = 10;
  double rollback_lr_factor = 0.5;
  void Visit(SettingVisitor& v) {
    v.Section(
        "tail_ratio",
        "Alarm when policy/student_tail over policy/teacher_tail exceeds limit times its value "
        "at the start (or 1, if that is more).",
        tail_ratio);
    v.Section("low_entropy",
              "Alarm when policy/entropy is below limit times its value at the start.",
              low_entropy);
    v.Section("high_entropy",
              "Alarm when policy/entropy is above limit times its value at the start.",
              high_entropy);
    v.Section(
        "long_responses",
        "Alarm when rollout/response_length_mean is above limit times its value at the start.",
        long_responses);
    v.Section(
        "short_responses",
        "Alarm when rollout/response_length_mean is below limit times its value at the start.",
        short_responses);
    v.Section("repetition", "Alarm when rollout/repeated_ngrams exceeds limit.", repetition);
    v.Section("kl_to_start",
              "Alarm when policy/kl_to_start exceeds limit, in nats per token; the metric is "
              "measured only if the limit is above 0.",
              kl_to_start);
    v.Setting("baseline_steps", &baseline_steps,
              "Number of first steps whose mean is the value at the start.", AtLeast<int64_t>(1))
        .MayChange();
    v.Setting("patience", &patience,
              "A guard acts when its alarm has lasted for this many steps; a warning is logged at "
              "the first.",
              AtLeast<int64_t>(1))
        .MayChange();
    v.Setting("kl_every", &kl_every,
              Concat("Steps between measurements of policy/kl_to_start, on ", kNumProbes,
                     " responses of the first step."),
              AtLeast<int64_t>(1))
        .MayChange();
    v.Setting("rollback_lr_factor", &rollback_lr_factor,
              Concat("Each roll-back multiplies the learning rate by this number. After ",
                     kMaxRollbacks, ", the run ends with code 76 instead of one more."),
              Fraction())
        .MayChange();
  }
};

// Returns whether a guard that is on may roll the run back.
inline bool RollsBack(const GuardConfig& config) {
  for (const GuardRuleConfig* rule :
       {&config.tail_ratio, &config.low_entropy, &config.high_entropy, &config.long_responses,
        &config.short_responses, &config.repetition, &config.kl_to_start}) {
    if (rule->limit > 0 && rule->action == GuardAction::kRollBack) return true;
  }
  return false;
}

}  // namespace taopd
