#include "trainer/config/guard_config.h"

namespace taopd {

void GuardRuleConfig::Declare(SettingTable& keys) {
  keys.AddMutable("limit", &limit, "Limit of the alarm. 0 turns the guard off.", AtLeast(0.0));
  keys.AddMutable("action", &action,
                  "Action of the guard: warn, pause, stop (code 76) or roll_back.");
}

void GuardConfig::Declare(SettingTable& keys) {
  keys.AddSection("tail_ratio",
                  "Alarm when policy/student_tail divided by policy/teacher_tail exceeds limit "
                  "times the larger of 1 and the value of this ratio at the start.",
                  tail_ratio);
  keys.AddSection("low_entropy",
                  "Alarm when policy/entropy is below limit times its value at the start.",
                  low_entropy);
  keys.AddSection("high_entropy",
                  "Alarm when policy/entropy is above limit times its value at the start.",
                  high_entropy);
  keys.AddSection(
      "long_responses",
      "Alarm when rollout/response_length_mean is above limit times its value at the start.",
      long_responses);
  keys.AddSection(
      "short_responses",
      "Alarm when rollout/response_length_mean is below limit times its value at the start.",
      short_responses);
  keys.AddSection("repetition", "Alarm when rollout/repeated_ngrams exceeds limit.", repetition);
  keys.AddSection("kl_to_start",
                  "Alarm when policy/kl_to_start exceeds limit, in nats per token. The metric is "
                  "measured only if the limit is above 0.",
                  kl_to_start);
  keys.AddMutable("baseline_steps", &baseline_steps,
                  "Number of first steps over which the value at the start is averaged.",
                  AtLeast<int64_t>(1));
  keys.AddMutable("patience", &patience,
                  "A guard acts when its alarm has lasted for this many steps. A warning is logged "
                  "at the first of them.",
                  AtLeast<int64_t>(1));
  keys.AddMutable("kl_every", &kl_every,
                  Concat("Number of steps between measurements of policy/kl_to_start, on ",
                         kNumProbes, " responses of the first step."),
                  AtLeast<int64_t>(1));
  keys.AddMutable("rollback_lr_factor", &rollback_lr_factor,
                  Concat("Each roll-back multiplies the learning rate by this number. After ",
                         kMaxRollbacks, " roll-backs, the next one ends the run with code 76."),
                  Fraction());
}

}  // namespace taopd
