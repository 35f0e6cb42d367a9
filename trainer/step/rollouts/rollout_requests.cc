#include "trainer/step/rollouts/rollout_requests.h"

#include <utility>

#include "common/base/random.h"
#include "trainer/step/support.h"

namespace taopd {

std::vector<int64_t> SequencesOfStep(const TrainConfig& config, const Shares& shares) {
  const int64_t per_mini_batch = config.trainer.mini_batch_size * config.rollout.n;
  const int64_t count = config.data.train_batch_size * config.rollout.n;
  const SequenceRange mine = shares.OwnRange(per_mini_batch);
  std::vector<int64_t> sequences;
  for (int64_t first = 0; first < count; first += per_mini_batch) {
    for (int64_t i = first + mine.begin; i < first + mine.end; ++i) sequences.push_back(i);
  }
  return sequences;
}

std::vector<bool> OffPolicyPrompts(const TrainConfig& config, int64_t step) {
  const int64_t size = config.data.train_batch_size;
  RandomStream random(DeriveSeed(config.run.seed, "off-policy", {static_cast<uint64_t>(step)}));
  std::vector<bool> chosen(size, false);
  int64_t num_left = config.data.NumOffPolicy();
  for (int64_t i = 0; i < size; ++i) {
    // `num_left` of the remaining prompts are still to be chosen.
    if (static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(size - i))) >= num_left)
      continue;
    chosen[i] = true;
    --num_left;
  }
  return chosen;
}

SamplingParams RolloutSampling(const TrainConfig& config) {
  SamplingParams sampling;
  sampling.max_new_tokens = config.data.max_response_length;
  sampling.temperature = static_cast<float>(config.rollout.temperature);
  sampling.top_p = static_cast<float>(config.rollout.top_p);
  sampling.top_k = static_cast<int32_t>(config.rollout.top_k);
  sampling.num_log_probs = MakeSupportOptions(config, /*vocab_size=*/0).student_top_k;
  sampling.top_log_probs_mode = LogProbsMode::kProcessed;
  return sampling;
}

std::vector<RolloutRequest> MakeRolloutRequests(const TrainConfig& config, int64_t step,
                                                const std::vector<const PromptRecord*>& prompts) {
  const SamplingParams sampling = RolloutSampling(config);
  std::vector<RolloutRequest> requests;
  requests.reserve(prompts.size() * config.rollout.n);
  const std::vector<bool> off_policy = OffPolicyPrompts(config, step);
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    for (int64_t sample = 0; sample < config.rollout.n; ++sample) {
      RolloutRequest request;
      request.prompt_ids = prompts[prompt]->prompt_ids;
      request.source = prompts[prompt]->source;
      if (off_policy[prompt]) request.given_ids = prompts[prompt]->response_ids;
      request.sampling = sampling;
      request.sampling.seed =
          DeriveSeed(config.run.seed, "rollout",
                     {static_cast<uint64_t>(step), prompt, static_cast<uint64_t>(sample)});
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

}  // namespace taopd
