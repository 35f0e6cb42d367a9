#include "trainer/step/timing/model_flops.h"

#include <absl/time/clock.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "trainer/step/balance/balance_shares.h"

namespace taopd {

double ModelFlops(const ModelConfig& config, const std::vector<Rollout>& rollouts) {
  double flops = 0;
  const Rollout* before = nullptr;
  for (const Rollout& rollout : rollouts) {
    const auto num_prompt = static_cast<int64_t>(rollout.prompt_ids.size());
    const auto num_response = static_cast<int64_t>(rollout.response_ids.size());
    flops += (rollout.is_given ? 6 : 8) *
             SequenceCost(config, num_prompt + num_response - 1, num_response);
    if (rollout.is_given) continue;
    if (before != nullptr && before->prompt_ids == rollout.prompt_ids) {
      flops -= 2 * SequenceCost(config, num_prompt, 0);
    }
    before = &rollout;
  }
  return flops;
}

double MeasurePeakFlops(at::ScalarType dtype) {
  constexpr int64_t kSize = 512;
  constexpr int kTrials = 6;  // the first trial also warms up caches and threads
  const c10::InferenceMode inference;
  const at::Tensor a = at::ones({kSize, kSize}, dtype);
  absl::Duration best = absl::InfiniteDuration();
  for (int i = 0; i < kTrials; ++i) {
    const absl::Time start = absl::Now();
    at::mm(a, a);
    best = std::min(best, absl::Now() - start);
  }
  return 2.0 * kSize * kSize * kSize / std::max(absl::ToDoubleSeconds(best), 1e-9);
}

}  // namespace taopd
