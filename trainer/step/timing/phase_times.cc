#include "trainer/step/timing/phase_times.h"

namespace taopd {

const char* PhaseMetric(Phase phase) {
  static constexpr std::array<const char*, static_cast<size_t>(Phase::kNumPhases)> kNames = {
      "time/pack_s", "time/rollout_wait_s", "time/teacher_wait_s", "time/forward_s",
      "time/head_s", "time/backward_s",     "time/optimizer_s"};
  return kNames[static_cast<size_t>(phase)];
}

std::string PhaseName(Phase phase) {
  const std::string metric = PhaseMetric(phase);
  return metric.substr(5, metric.size() - 7);
}

}  // namespace taopd
