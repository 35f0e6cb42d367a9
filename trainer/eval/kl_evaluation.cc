#include "trainer/eval/kl_evaluation.h"

#include <absl/synchronization/blocking_counter.h>

#include <utility>

#include "trainer/step/loss/head_targets.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

ScoredRollout AsRollout(const PromptRecord& record) {
  ScoredRollout item;
  item.rollout.prompt_ids = record.prompt_ids;
  item.rollout.response_ids = record.response_ids;
  item.rollout.source = record.source;
  // Nobody sampled the response; ta_opd does not read these.
  item.rollout.behavior_log_probs.assign(record.response_ids.size(), 0.0f);
  return item;
}

absl::StatusOr<std::vector<ScoredRollout>> ScoreRecords(const SupportOptions& support,
                                                        const std::vector<PromptRecord>& records,
                                                        TeacherClient* teacher) {
  std::vector<ScoredRollout> items;
  for (const PromptRecord& record : records) items.push_back(AsRollout(record));
  std::vector<absl::StatusOr<SupportScores>> scores(items.size(), SupportScores());
  absl::BlockingCounter pending(static_cast<int>(items.size()));
  for (size_t i = 0; i < items.size(); ++i) {
    teacher->Score(MakeTeacherRequest(support, items[i].rollout, Concat("eval-", i)),
                   [&, i](absl::StatusOr<TeacherScores> reply) {
                     scores[i] = reply.ok()
                                     ? ReduceToSupport(support, items[i].rollout, *std::move(reply))
                                     : absl::StatusOr<SupportScores>(reply.status());
                     pending.DecrementCount();
                   });
  }
  pending.Wait();
  for (size_t i = 0; i < items.size(); ++i) {
    TAOPD_ASSIGN_OR_RETURN(items[i].scores, std::move(scores[i]));
  }
  return items;
}

}  // namespace

absl::StatusOr<Metrics> EvaluateKl(const KlEvaluationOptions& options,
                                   const std::vector<PromptRecord>& records, Decoder* student,
                                   TeacherClient* teacher) {
  SupportOptions support;
  support.kind = SupportKind::kTeacher;
  support.teacher_top_k = options.top_k;
  support.vocab_size = student->config().vocab_size;
  TAOPD_ASSIGN_OR_RETURN(const std::vector<ScoredRollout> items,
                         ScoreRecords(support, records, teacher));
  HeadOptions head;
  head.objective = *FindObjective("ta_opd");
  head.workspace_bytes = options.head_workspace_bytes;
  std::vector<int64_t> num_tokens;
  for (const ScoredRollout& item : items) num_tokens.push_back(NumInputTokens(item.rollout));

  const at::NoGradGuard no_grad;
  double sum = 0;
  int64_t num_rows = 0, begin = 0;
  for (const int64_t end : MicroBatchEnds(num_tokens, options.micro_batch_tokens)) {
    std::vector<const ScoredRollout*> sequences;
    for (int64_t i = begin; i < end; ++i) sequences.push_back(&items[i]);
    const HeadTargets targets =
        MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
    sum += SumRowLosses(*student, ForwardResponses(student, sequences), targets, head);
    num_rows += targets.sampled_ids_N.size(0);
    begin = end;
  }
  return Metrics{{"eval/kl_to_teacher", sum / static_cast<double>(num_rows)},
                 {"eval/n", static_cast<double>(records.size())}};
}

}  // namespace taopd
