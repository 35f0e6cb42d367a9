#include "trainer/step/full_kl.h"

#include <absl/synchronization/mutex.h>

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "common/base/random.h"

namespace taopd {
namespace {

// `count` of the numbers 0..total-1, each set of them equally likely, in rising order (Floyd's
// algorithm).
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

// Sequence `item` as if its response were the one token of row `row`.
ScoredRollout OneRow(const ScoredRollout& item, int64_t row) {
  const Rollout& rollout = item.rollout;
  const int64_t k = item.scores.top_k;
  ScoredRollout one;
  one.rollout.prompt_ids = rollout.prompt_ids;
  one.rollout.prompt_ids.insert(one.rollout.prompt_ids.end(), rollout.response_ids.begin(),
                                rollout.response_ids.begin() + row);
  one.rollout.response_ids = {rollout.response_ids[row]};
  one.rollout.behavior_log_probs = {rollout.behavior_log_probs[row]};
  one.scores.top_k = item.scores.top_k;
  one.scores.ids = Row(item.scores.ids, row, k);
  one.scores.log_probs = Row(item.scores.log_probs, row, k);
  one.scores.log_tail = {item.scores.log_tail[row]};
  one.scores.sampled_log_probs = {item.scores.sampled_log_probs[row]};
  return one;
}

// Answers may come after the wait was given up: they go here, not to the caller's stack.
struct Answers {
  explicit Answers(size_t count) : scores(count), num_open(count) {}
  absl::Mutex mutex;
  std::vector<absl::StatusOr<TeacherScores>> scores ABSL_GUARDED_BY(mutex);
  size_t num_open ABSL_GUARDED_BY(mutex);
};

absl::Status FetchDense(const StepContext& context, const SupportOptions& support, int64_t step,
                        std::vector<ScoredRollout>* rows) {
  SupportOptions dense;
  dense.kind = SupportKind::kFullVocabulary;
  dense.teacher_top_k = 0;
  dense.temperature = support.temperature;
  dense.vocab_size = support.vocab_size;
  const auto answers = std::make_shared<Answers>(rows->size());
  for (size_t i = 0; i < rows->size(); ++i) {
    TeacherRequest request =
        MakeTeacherRequest(dense, (*rows)[i].rollout, Concat("step-", step + 1, "-full-kl-", i));
    context.teacher->Score(std::move(request), [answers, i](absl::StatusOr<TeacherScores> scores) {
      absl::MutexLock lock(&answers->mutex);
      answers->scores[i] = std::move(scores);
      --answers->num_open;
    });
  }
  const auto all_here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers->mutex) {
    return answers->num_open == 0;
  };
  while (true) {
    {
      absl::MutexLock lock(&answers->mutex);
      if (answers->mutex.AwaitWithTimeout(absl::Condition(&all_here), absl::Seconds(1))) break;
    }
    TAOPD_RETURN_IF_ERROR(context.on_wait());
  }
  absl::MutexLock lock(&answers->mutex);
  for (size_t i = 0; i < rows->size(); ++i) {
    absl::StatusOr<TeacherScores>& scores = answers->scores[i];
    absl::Status status = scores.status();
    if (status.ok()) status = ReduceToSupport(dense, (*rows)[i].rollout, &*scores);
    TAOPD_RETURN_IF_ERROR(Annotate(status, "dense teacher scores"));
    (*rows)[i].scores.dense_log_probs = std::move(scores->dense_log_probs);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status MeasureFullKl(const StepContext& context, const ScoredBatch& batch,
                           const SupportOptions& support, int64_t end, int64_t step, FullKl* sums) {
  const TrainConfig& config = *context.config;
  int64_t total = 0;
  for (int64_t i = 0; i < end; ++i)
    total += static_cast<int64_t>(batch.item(i).rollout.response_ids.size());
  const std::vector<int64_t> chosen =
      SampleRows(total, std::min(total, config.objective.full_kl_rows),
                 DeriveSeed(config.run.seed, "full KL", {static_cast<uint64_t>(step)}));
  std::vector<ScoredRollout> rows;
  int64_t sequence = 0, first = 0;  // `first` row of `sequence`
  for (const int64_t row : chosen) {
    while (row - first >= static_cast<int64_t>(batch.item(sequence).rollout.response_ids.size())) {
      first += static_cast<int64_t>(batch.item(sequence).rollout.response_ids.size());
      ++sequence;
    }
    rows.push_back(OneRow(batch.item(sequence), row - first));
  }
  TAOPD_RETURN_IF_ERROR(FetchDense(context, support, step, &rows));

  const at::NoGradGuard no_grad;
  Decoder* student = context.student;
  HeadOptions full = context.head, bound = context.head;
  full.objective = *FindObjective("full");
  bound.objective = *FindObjective("ta_opd");
  std::vector<int64_t> tokens;
  for (const ScoredRollout& row : rows)
    tokens.push_back(static_cast<int64_t>(row.rollout.prompt_ids.size()));
  int64_t begin = 0;
  for (const int64_t stop : MicroBatchEnds(tokens, config.trainer.micro_batch_tokens)) {
    std::vector<const ScoredRollout*> sequences;
    std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>> pairs;
    for (int64_t i = begin; i < stop; ++i) {
      sequences.push_back(&rows[i]);
      pairs.emplace_back(&rows[i].rollout.prompt_ids, &rows[i].rollout.response_ids);
    }
    const StudentInput input = MakeStudentInput(pairs, student->device());
    const HeadTargets targets =
        MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
    const at::Tensor hidden_NH = student->Forward(input.batch).index_select(0, input.rows_N);
    const auto sum = [&](const HeadTargets& of, const HeadOptions& head) {
      return StudentHead(hidden_NH, student->lm_head(), of, head, at::Tensor())
          .loss_N.to(at::kDouble)
          .sum()
          .item<double>();
    };
    sums->full_kl += sum(WithFullVocabulary(targets, sequences, support.vocab_size), full);
    sums->ta_opd += sum(targets, bound);
    begin = stop;
  }
  sums->num_rows = static_cast<int64_t>(rows.size());
  return absl::OkStatus();
}

}  // namespace taopd
