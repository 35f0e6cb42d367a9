#include "trainer/eval/evaluator.h"

#include <absl/synchronization/blocking_counter.h>

#include <algorithm>

#include "kernels/torch/head/student_head.h"
#include "trainer/step/train_step.h"

namespace taopd {

absl::StatusOr<EvalResult> EvaluateKl(int64_t top_k, int64_t micro_batch_tokens,
                                      int64_t head_workspace_bytes,
                                      const std::vector<PromptRecord>& records, Decoder* student,
                                      TeacherClient* teacher) {
  std::vector<ScoredRollout> scored(records.size());
  std::vector<absl::Status> statuses(records.size());
  absl::BlockingCounter pending(static_cast<int>(records.size()));
  for (size_t i = 0; i < records.size(); ++i) {
    Rollout& rollout = scored[i].rollout;
    rollout.prompt_ids = records[i].prompt_ids;
    rollout.response_ids = records[i].response_ids;
    rollout.behavior_log_probs.assign(rollout.response_ids.size(), 0.0f);
    TeacherRequest request;
    request.request_id = Concat("eval-", i);
    request.token_ids = rollout.prompt_ids;
    request.token_ids.insert(request.token_ids.end(), rollout.response_ids.begin(),
                             rollout.response_ids.end());
    request.score_start = static_cast<int64_t>(rollout.prompt_ids.size());
    request.top_k = static_cast<int32_t>(top_k);
    teacher->Score(std::move(request), [&, i](absl::StatusOr<TeacherScores> scores) {
      statuses[i] = scores.status();
      if (scores.ok()) scored[i].scores = *std::move(scores);
      pending.DecrementCount();
    });
  }
  pending.Wait();
  for (const absl::Status& status : statuses) TAOPD_RETURN_IF_ERROR(status);

  HeadOptions head;
  head.objective = *FindObjective("ta_opd");
  head.workspace_bytes = head_workspace_bytes;
  std::vector<int64_t> tokens;
  for (const ScoredRollout& item : scored) {
    tokens.push_back(
        static_cast<int64_t>(item.rollout.prompt_ids.size() + item.rollout.response_ids.size()) -
        1);
  }
  at::NoGradGuard no_grad;
  double sum = 0;
  int64_t num_rows = 0, begin = 0;
  for (int64_t end : MicroBatchEnds(tokens, micro_batch_tokens)) {
    std::vector<const ScoredRollout*> sequences;
    std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>> pairs;
    for (int64_t i = begin; i < end; ++i) {
      sequences.push_back(&scored[i]);
      pairs.emplace_back(&scored[i].rollout.prompt_ids, &scored[i].rollout.response_ids);
    }
    const StudentInput input = MakeStudentInput(pairs, student->device());
    const HeadTargets targets =
        MakeHeadTargets(sequences, std::vector<double>(sequences.size(), 1.0), student->device());
    const at::Tensor hidden_NH = student->Forward(input.batch).index_select(0, input.rows_N);
    const HeadOutput output =
        StudentHead(hidden_NH, student->lm_head(), targets, head, at::Tensor());
    sum += output.loss_N.to(at::kDouble).sum().item<double>();
    num_rows += output.loss_N.size(0);
    begin = end;
  }
  EvalResult result;
  result.metrics = {{"eval/kl_to_teacher", sum / static_cast<double>(num_rows)},
                    {"eval/n", static_cast<double>(records.size())}};
  return result;
}

}  // namespace taopd
