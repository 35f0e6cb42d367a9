#include "trainer/step/full_kl.h"

#include <algorithm>
#include <set>
#include <vector>

#include "common/base/random.h"
#include "trainer/step/loss/head_targets.h"
#include "trainer/step/loss/micro_batches.h"

namespace taopd {
namespace {

// Draws `count` of the numbers 0..total-1 by Floyd's algorithm, which makes every set equally
// likely. Returns them in ascending order.
std::vector<int64_t> SampleRows(int64_t total, int64_t count, uint64_t seed) {
  RandomStream random(seed);
  std::set<int64_t> chosen;
  for (int64_t bound = total - count; bound < total; ++bound) {
    const auto candidate = static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(bound) + 1));
    if (!chosen.insert(candidate).second) chosen.insert(bound);
  }
  return {chosen.begin(), chosen.end()};
}

template <typename T>
std::vector<T> Row(const std::vector<T>& values, int64_t row, int64_t width) {
  return {values.begin() + row * width, values.begin() + (row + 1) * width};
}

// Returns the sequence whose response is only the token of row `row` of `item`.
ScoredRollout OneRow(const ScoredRollout& item, int64_t row) {
  const Rollout& rollout = item.rollout;
  const int64_t k = item.scores.support_size;
  ScoredRollout one;
  one.rollout.prompt_ids = rollout.prompt_ids;
  one.rollout.prompt_ids.insert(one.rollout.prompt_ids.end(), rollout.response_ids.begin(),
                                rollout.response_ids.begin() + row);
  if (!item.teacher_prompt_ids.empty()) {
    one.teacher_prompt_ids = item.teacher_prompt_ids;
    one.teacher_prompt_ids.insert(one.teacher_prompt_ids.end(), rollout.response_ids.begin(),
                                  rollout.response_ids.begin() + row);
  }
  one.rollout.response_ids = {rollout.response_ids[row]};
  one.rollout.source = rollout.source;
  one.rollout.behavior_log_probs = {rollout.behavior_log_probs[row]};
  one.scores.support_size = k;
  one.scores.ids = Row(item.scores.ids, row, k);
  one.scores.log_probs = Row(item.scores.log_probs, row, k);
  one.scores.log_tail = {item.scores.log_tail[row]};
  one.scores.sampled_log_probs = {item.scores.sampled_log_probs[row]};
  return one;
}

// Chooses the rows that are measured among the responses of sequences [0, end).
std::vector<ScoredRollout> SampleRollouts(const ScoredBatch& batch, int64_t end, int64_t max_rows,
                                          uint64_t seed) {
  const auto num_rows_of = [&](int64_t sequence) {
    return static_cast<int64_t>(batch.item(sequence).rollout.response_ids.size());
  };
  int64_t total = 0;
  for (int64_t i = 0; i < end; ++i) total += num_rows_of(i);
  std::vector<ScoredRollout> rows;
  int64_t sequence = 0, first = 0;  // `first` is the first row of `sequence`
  for (const int64_t row : SampleRows(total, std::min(total, max_rows), seed)) {
    while (row - first >= num_rows_of(sequence)) first += num_rows_of(sequence++);
    rows.push_back(OneRow(batch.item(sequence), row - first));
  }
  return rows;
}

// Returns the options of requests for the log-probs of the whole vocabulary.
SupportOptions DenseOptions(const SupportOptions& support) {
  return {.kind = SupportKind::kFullVocabulary,
          .teacher_top_k = 0,
          .teacher_temperature = support.teacher_temperature,
          .vocab_size = support.vocab_size};
}

}  // namespace

absl::StatusOr<FullKlSums> MeasureFullKl(const StepContext& context, const ScoredBatch& batch,
                                         const SupportOptions& support, int64_t end,
                                         int64_t num_rows, int64_t step) {
  const TrainConfig& config = *context.config;
  const std::vector<ScoredRollout> rows = SampleRollouts(
      batch, end, num_rows, DeriveSeed(config.run.seed, "full KL", {static_cast<uint64_t>(step)}));
  const auto dense = ScoredBatch::Continue(rows, std::vector<bool>(rows.size(), false),
                                           {.teacher = context.teacher,
                                            .support = DenseOptions(support),
                                            .name = Concat("step-", step + 1, "-full-kl")});
  TAOPD_RETURN_IF_ERROR(
      Annotate(dense->WaitScored(0, dense->size(), context.on_wait), "policy/full_kl"));

  const at::NoGradGuard no_grad;
  Decoder* student = context.student;
  HeadOptions full = context.head, bound = context.head;
  full.objective = *FindObjective("full");
  bound.objective = *FindObjective("ta_opd");
  std::vector<int64_t> num_tokens;
  for (const ScoredRollout& row : rows) num_tokens.push_back(NumInputTokens(row.rollout));
  FullKlSums sums;
  sums.num_rows = static_cast<int64_t>(rows.size());
  int64_t first = 0;
  for (const int64_t last : MicroBatchEnds(num_tokens, config.trainer.MicroBatchTokens())) {
    std::vector<const ScoredRollout*> sequences;
    for (int64_t i = first; i < last; ++i) sequences.push_back(&rows[i]);
    const HeadTargets targets =
        MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
    const at::Tensor hidden_NH = ForwardResponses(student, sequences);
    sums.full_kl += SumRowLosses(
        *student, hidden_NH,
        WithFullVocabulary(targets, dense->Items(first, last), support.vocab_size), full);
    sums.ta_opd += SumRowLosses(*student, hidden_NH, targets, bound);
    first = last;
  }
  return sums;
}

}  // namespace taopd
