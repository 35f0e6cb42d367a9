// Computes the metrics of one step, under the names of metrics.jsonl.
#pragma once

#include <absl/time/time.h>

#include <cstdint>
#include <vector>

#include "common/metrics/sink.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/step/full_kl.h"
#include "trainer/step/loss/forward_backward.h"
#include "trainer/step/support.h"
#include "trainer/step/timing/phase_times.h"

namespace taopd {

// Sums over rollouts. Given responses do not count in num_rollouts, num_response_tokens, longest,
// num_truncated, repeated_ngrams and staleness.
struct RolloutSums {
  int64_t num_rollouts = 0;
  int64_t num_response_tokens = 0;
  int64_t num_tokens = 0;  // including prompts
  int64_t longest = 0;     // the largest number of response tokens
  int64_t num_truncated = 0;
  double repeated_ngrams = 0;
  int64_t num_given = 0;
  int64_t num_beyond_vocabulary = 0;  // SupportScores::num_beyond_vocabulary
  int64_t num_teacher_prompts_missing = 0;
  int64_t staleness = 0;  // steps between the weights that generated a rollout and this step's
};
// Calls visit with a pointer to each number that is a sum over the ranks.
template <typename Visit>
void ForEachSum(const Visit& visit, RolloutSums& sums) {
  visit(&sums.num_rollouts);
  visit(&sums.num_response_tokens);
  visit(&sums.num_tokens);
  visit(&sums.num_truncated);
  visit(&sums.repeated_ngrams);
  visit(&sums.num_given);
  visit(&sums.num_beyond_vocabulary);
  visit(&sums.num_teacher_prompts_missing);
  visit(&sums.staleness);
}
// `items` are those of step `step`.
RolloutSums SumRollouts(const std::vector<const ScoredRollout*>& items, int64_t step);

// Sums over the rewarded responses, which given responses are not.
struct RewardSums {
  int64_t num_rewards = 0;
  double reward = 0;
  double reward_square = 0;
  int64_t num_groups = 0;          // of the responses to one prompt
  int64_t num_without_signal = 0;  // groups whose advantages are all 0
  int64_t num_retries = 0;         // of requests for rewards, since the start of the process
};
template <typename Visit>
void ForEachSum(const Visit& visit, RewardSums& sums) {
  visit(&sums.num_rewards);
  visit(&sums.reward);
  visit(&sums.reward_square);
  visit(&sums.num_groups);
  visit(&sums.num_without_signal);
  visit(&sums.num_retries);
}
// `items` are in groups of `group_size` responses to one prompt.
RewardSums SumRewards(const std::vector<const ScoredRollout*>& items, int64_t group_size);

// The results of a step over all ranks.
struct StepRecord {
  RowSums sums;              // over the mini-batches that updated the weights
  double grad_norm_sum = 0;  // over the same mini-batches, before clipping
  int64_t num_updates = 0;
  int64_t num_skipped_updates = 0;
  double lr = 0;
  FullKlSums full_kl;  // without rows if it is not measured
  RolloutSums rollouts;
  RewardSums rewards;
  absl::Duration duration;  // duration of the whole step
};

// Returns the share of a response's n-grams of kRepeatedNgram tokens that occur earlier in it, or 0
// for a response that is too short to have two.
inline constexpr int64_t kRepeatedNgram = 4;
double RepeatedNgrams(const std::vector<int32_t>& response_ids);

// `head` holds the step's objective and whether the overlap of the top-k is measured. A mean over
// nothing, such as the loss of a step without an update, is NaN. A step without a teacher has no
// metrics that compare the student with one.
Metrics MakeStepMetrics(const StepRecord& record, const PhaseTimes& times,
                        const SupportOptions& support, const HeadOptions& head);

// Returns the metrics that a step has only with certain settings: those of prompts for the teacher,
// of rewards, of rollouts on other servers, of masked responses and of given responses.
Metrics MakeOptionalMetrics(const StepRecord& record, const TrainConfig& config);

}  // namespace taopd
