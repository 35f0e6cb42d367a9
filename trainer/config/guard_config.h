// Settings of the collapse guard (trainer/guard/collapse_guard.h).
#pragma once

#include <cstdint>

#include "common/config/settings.h"
#include "trainer/config/run_config.h"

namespace taopd {

// The action of a guard whose alarm has lasted, in ascending order of severity. kNone means that
// there is no alarm.
enum class GuardAction { kNone, kWarn, kPause, kStop, kRollBack };
inline EnumNames<GuardAction> NamesOf(GuardAction) {
  return {{GuardAction::kWarn, "warn"},
          {GuardAction::kPause, "pause"},
          {GuardAction::kStop, "stop"},
          {GuardAction::kRollBack, "roll_back"}};
}

// The limit at which a watched quantity raises an alarm, and the action that follows.
struct GuardRuleConfig {
  double limit = 0;
  GuardAction action = GuardAction::kWarn;
  void Declare(SettingTable& keys);
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
  void Declare(SettingTable& keys);
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
