#include "trainer/step/step_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "common/model/kernel_setup.h"

namespace taopd {
namespace {

template <typename Number>
double Mean(Number sum, int64_t count) {
  return count > 0 ? static_cast<double>(sum) / static_cast<double>(count)
                   : std::numeric_limits<double>::quiet_NaN();
}

void AddLossMetrics(const StepRecord& record, const ObjectiveTerms& terms, Metrics* metrics) {
  const RowSums& sums = record.sums;
  metrics->emplace_back("loss/mean", Mean(sums.weighted_loss, record.num_updates));
  metrics->emplace_back("loss/row_mean", Mean(sums.loss, sums.num_rows));
  for (int32_t i = 0; terms.num_terms > 1 && i < terms.num_terms; ++i) {
    metrics->emplace_back(Concat("loss/term/", InfoOf(terms.term[i].objective).name),
                          Mean(sums.term_loss[i], sums.num_rows));
  }
  metrics->emplace_back("loss/grad_norm", Mean(record.grad_norm_sum, record.num_updates));
  metrics->emplace_back("optim/lr", record.lr);
}

// Adds the columns of the head that a step reports as they are.
void AddHeadMetrics(const RowSums& sums, bool has_teacher, Metrics* metrics) {
  for (size_t column = 0; column < kHeadMetrics.size(); ++column) {
    const HeadMetricInfo& info = kHeadMetrics[column];
    if (info.value == StepValue::kNone || (info.needs_teacher && !has_teacher)) continue;
    const double sum = sums.head_metrics[column];
    metrics->emplace_back(info.step_metric,
                          info.value == StepValue::kSum ? sum : Mean(sum, sums.num_rows));
  }
}

// Adds the share of one model's top-k tokens that are also among the other's.
void AddOverlap(const RowSums& sums, const SupportOptions& support, bool is_measured,
                Metrics* metrics) {
  const int64_t rows = sums.num_rows;
  if (is_measured) {
    metrics->emplace_back("policy/overlap",
                          Mean(sums.head_metrics[kTopKOverlap], rows) / support.teacher_top_k);
    metrics->emplace_back("policy/overlap_advantage",
                          Mean(sums.head_metrics[kTopKOverlapAdvantage], rows));
  } else if (support.kind == SupportKind::kUnion) {
    metrics->emplace_back("policy/overlap", Mean(sums.num_shared, rows) / support.student_top_k);
  }
}

// Adds the distance of the student from the policy that generated the responses.
void AddBehaviorMetrics(const RowSums& sums, Metrics* metrics) {
  metrics->emplace_back("policy/vetoed_responses", sums.num_vetoed);
  const int64_t drawn = sums.num_rows - sums.num_given_rows;
  metrics->emplace_back("policy/kl_behavior", Mean(sums.behavior_gap, drawn));
  // Kish's effective sample size: the number of rows of equal weight with the same variance, as a
  // share of all rows.
  metrics->emplace_back("policy/effective_sample_size",
                        sums.rho * sums.rho / (static_cast<double>(drawn) * sums.rho_square));
}

// Returns the sums over all positions if the objective `full` is among the terms, because no sample
// is needed then, and otherwise the sums of the sample.
FullKlSums FullKlOf(const StepRecord& record, const ObjectiveTerms& terms) {
  const RowSums& sums = record.sums;
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const auto& [objective, weight] = terms.term[i];
    if (objective.kind == ObjectiveKind::kFull)
      return {sums.term_loss[i] / weight, sums.ta_loss, sums.num_rows};
  }
  return record.full_kl;
}

void AddFullKlMetrics(const FullKlSums& full_kl, Metrics* metrics) {
  if (full_kl.num_rows == 0) return;
  metrics->emplace_back("policy/full_kl", Mean(full_kl.full_kl, full_kl.num_rows));
  metrics->emplace_back("policy/truncation_gap",
                        Mean(full_kl.full_kl - full_kl.ta_opd, full_kl.num_rows));
  metrics->emplace_back("policy/full_kl_rows", full_kl.num_rows);
}

void AddRolloutMetrics(const RolloutSums& sums, Metrics* metrics) {
  const int64_t count = sums.num_rollouts;
  const auto num_tokens = static_cast<double>(sums.num_response_tokens);
  metrics->emplace_back("rollout/response_length_mean", Mean(num_tokens, count));
  metrics->emplace_back("rollout/response_length_max", sums.longest);
  metrics->emplace_back("rollout/truncated_share", Mean(sums.num_truncated, count));
  metrics->emplace_back("rollout/repeated_ngrams", Mean(sums.repeated_ngrams, count));
  metrics->emplace_back("rollout/tokens", num_tokens);
}

void AddTimeMetrics(const StepRecord& record, const PhaseTimes& times, Metrics* metrics) {
  const double step_s = absl::ToDoubleSeconds(record.duration);
  metrics->emplace_back("time/step_s", step_s);
  for (size_t i = 0; i < static_cast<size_t>(Phase::kNumPhases); ++i) {
    const auto phase = static_cast<Phase>(i);
    metrics->emplace_back(PhaseMetric(phase), absl::ToDoubleSeconds(times.of(phase)));
  }
  metrics->emplace_back(
      "time/train_s",
      step_s - absl::ToDoubleSeconds(times.of(Phase::kRollout) + times.of(Phase::kScoreWait)));
  metrics->emplace_back(
      "time/tokens_per_s",
      step_s > 0 ? static_cast<double>(record.rollouts.num_tokens) / step_s : 0.0);
}

}  // namespace

double RepeatedNgrams(const std::vector<int32_t>& response_ids) {
  const auto num_ngrams = static_cast<int64_t>(response_ids.size()) - kRepeatedNgram + 1;
  if (num_ngrams < 2) return 0;
  std::set<std::array<int32_t, kRepeatedNgram>> seen;
  for (int64_t i = 0; i < num_ngrams; ++i) {
    std::array<int32_t, kRepeatedNgram> ngram;
    std::copy_n(response_ids.begin() + i, kRepeatedNgram, ngram.begin());
    seen.insert(ngram);
  }
  return 1 - static_cast<double>(seen.size()) / static_cast<double>(num_ngrams);
}

RolloutSums SumRollouts(const std::vector<const ScoredRollout*>& items, int64_t step) {
  RolloutSums sums;
  for (const ScoredRollout* item : items) {
    const Rollout& rollout = item->rollout;
    const auto length = static_cast<int64_t>(rollout.response_ids.size());
    sums.num_beyond_vocabulary += item->scores.num_beyond_vocabulary;
    sums.num_teacher_prompts_missing += item->lacks_teacher_prompt ? 1 : 0;
    sums.num_tokens += length + static_cast<int64_t>(rollout.prompt_ids.size());
    if (rollout.is_given) {
      ++sums.num_given;
      continue;
    }
    ++sums.num_rollouts;
    if (rollout.policy_version != kLiveWeights) sums.staleness += step - rollout.policy_version;
    sums.num_response_tokens += length;
    sums.longest = std::max(sums.longest, length);
    sums.repeated_ngrams += RepeatedNgrams(rollout.response_ids);
    sums.num_truncated += rollout.finish == FinishReason::kLength ? 1 : 0;
  }
  return sums;
}

RewardSums SumRewards(const std::vector<const ScoredRollout*>& items, int64_t group_size) {
  RewardSums sums;
  for (size_t first = 0; first < items.size(); first += group_size) {
    if (items[first]->rollout.is_given) continue;
    bool has_signal = false;
    for (int64_t i = 0; i < group_size; ++i) {
      const ScoredRollout& item = *items[first + i];
      ++sums.num_rewards;
      sums.reward += item.reward;
      sums.reward_square += item.reward * item.reward;
      has_signal |= item.advantage != 0;
    }
    ++sums.num_groups;
    sums.num_without_signal += has_signal ? 0 : 1;
  }
  return sums;
}

Metrics MakeOptionalMetrics(const StepRecord& record, const TrainConfig& config) {
  Metrics metrics;
  if (config.data.HasTeacherPrompt()) {
    metrics.emplace_back("teacher/prompt_missing",
                         Mean(record.rollouts.num_teacher_prompts_missing,
                              record.rollouts.num_rollouts + record.rollouts.num_given));
  }
  if (config.reward.IsOn()) {
    const RewardSums& sums = record.rewards;
    const double mean = Mean(sums.reward, sums.num_rewards);
    const double square = Mean(sums.reward_square, sums.num_rewards);
    metrics.emplace_back("reward/mean", mean);
    metrics.emplace_back("reward/std", std::sqrt(std::max(0.0, square - mean * mean)));
    metrics.emplace_back("reward/no_signal_groups", Mean(sums.num_without_signal, sums.num_groups));
    metrics.emplace_back("reward/clipped_share",
                         Mean(record.sums.head_metrics[kRhoClipped], record.sums.num_rows));
    metrics.emplace_back("reward/retries", sums.num_retries);
  }
  if (config.rollout.IsElsewhere()) {
    const RowSums& sums = record.sums;
    metrics.emplace_back("rollout/log_prob_gap_mean",
                         Mean(sums.gaps.sum, sums.num_rows - sums.num_given_rows));
    metrics.emplace_back("rollout/log_prob_gap_p99", sums.gaps.Quantile(0.99));
  }
  if (config.rollout.mask_truncated) {
    metrics.emplace_back("rollout/masked_share",
                         Mean(record.rollouts.num_truncated, record.rollouts.num_rollouts));
  }
  if (config.data.offpolicy_fraction > 0) {
    const int64_t num_given = record.rollouts.num_given;
    metrics.emplace_back("data/offpolicy_share",
                         Mean(num_given, num_given + record.rollouts.num_rollouts));
  }
  return metrics;
}

Metrics MakeStepMetrics(const StepRecord& record, const PhaseTimes& times,
                        const SupportOptions& support, const HeadOptions& head) {
  Metrics metrics;
  AddLossMetrics(record, head.objective, &metrics);
  // Without a teacher, the support is empty.
  const bool has_teacher = support.teacher_top_k + support.student_top_k > 0;
  AddHeadMetrics(record.sums, has_teacher, &metrics);
  if (has_teacher) AddOverlap(record.sums, support, head.top_k_metrics, &metrics);
  AddBehaviorMetrics(record.sums, &metrics);
  const int64_t num_beyond_vocabulary = record.rollouts.num_beyond_vocabulary;
  if (num_beyond_vocabulary > 0) {
    metrics.emplace_back("teacher/beyond_vocabulary", num_beyond_vocabulary);
  }
  AddFullKlMetrics(FullKlOf(record, head.objective), &metrics);
  AddRolloutMetrics(record.rollouts, &metrics);
  metrics.emplace_back("optim/skipped_updates", record.num_skipped_updates);
  AddTimeMetrics(record, times, &metrics);
  metrics.emplace_back("policy/staleness",
                       Mean(record.rollouts.staleness, record.rollouts.num_rollouts));
  if (const int64_t left_out = NumKernelsLeftOut(); left_out > 0)
    metrics.emplace_back("perf/kernels_left_out", left_out);
  return metrics;
}

}  // namespace taopd
