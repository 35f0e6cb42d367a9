#include "trainer/eval/evaluator.h"

#include <absl/synchronization/blocking_counter.h>

#include <algorithm>

#include "common/base/random.h"
#include "kernels/torch/student_head.h"
#include "trainer/eval/wilson.h"
#include "trainer/step/train_step.h"

namespace taopd {

Verdict GradeRollout(const Grader& grader, const EvalConfig& config, const Tokenizer& tokenizer,
                     const Rollout& rollout, const PromptRecord& problem) {
  Verdict verdict = grader.Grade(tokenizer.Decode(rollout.response_ids), problem.answer, problem.source);
  if (config.require_stop && rollout.finish != FinishReason::kStop) verdict.correct = false;
  return verdict;
}

absl::StatusOr<EvalResult> EvaluateAccuracy(const EvalConfig& config, uint64_t seed,
                                            const std::vector<PromptRecord>& problems, const Tokenizer& tokenizer,
                                            RolloutEngine* engine, bool keep_all_samples) {
  TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<Grader> grader, Grader::Make(config.grader, config.answer_pattern));
  std::vector<RolloutRequest> requests;
  for (size_t problem = 0; problem < problems.size(); ++problem) {
    if (problems[problem].answer.empty()) return InvalidArgument(problems[problem].id, ": no answer to grade against");
    for (int64_t sample = 0; sample < config.n; ++sample) {
      RolloutRequest request;
      request.prompt_ids = problems[problem].prompt_ids;
      request.sampling.max_new_tokens = config.max_response_length;
      request.sampling.temperature = static_cast<float>(config.temperature);
      request.sampling.top_p = static_cast<float>(config.top_p);
      request.sampling.seed = DeriveSeed(seed, "eval", {problem, static_cast<uint64_t>(sample)});
      requests.push_back(std::move(request));
    }
  }
  TAOPD_ASSIGN_OR_RETURN(const std::vector<Rollout> rollouts, GenerateAll(engine, std::move(requests)));

  EvalResult result;
  int64_t num_correct = 0, num_tokens = 0, num_truncated = 0;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const PromptRecord& problem = problems[i / config.n];
    const Verdict verdict = GradeRollout(*grader, config, tokenizer, rollouts[i], problem);
    num_correct += verdict.correct ? 1 : 0;
    num_tokens += static_cast<int64_t>(rollouts[i].response_ids.size());
    num_truncated += rollouts[i].finish == FinishReason::kLength ? 1 : 0;
    if (keep_all_samples || static_cast<int64_t>(result.samples.size()) < config.num_samples) {
      const std::string prompt = problem.prompt.empty() ? tokenizer.Decode(problem.prompt_ids) : problem.prompt;
      result.samples.push_back(
          {problem.id, prompt, tokenizer.Decode(rollouts[i].response_ids), problem.answer, verdict.correct});
    }
  }
  const auto num_responses = static_cast<double>(rollouts.size());
  const auto num_problems = static_cast<double>(problems.size());
  const double accuracy = static_cast<double>(num_correct) / num_responses;
  const Interval interval = WilsonInterval(accuracy * num_problems, num_problems);
  result.metrics = {{"eval/accuracy", accuracy},
                    {"eval/accuracy_low", interval.low},
                    {"eval/accuracy_high", interval.high},
                    {"eval/n", num_problems},
                    {"eval/response_length_mean", static_cast<double>(num_tokens) / num_responses},
                    {"eval/truncated_share", static_cast<double>(num_truncated) / num_responses}};
  return result;
}

absl::StatusOr<EvalResult> EvaluateKl(int64_t top_k, int64_t micro_batch_tokens, int64_t head_workspace_bytes,
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
    request.token_ids.insert(request.token_ids.end(), rollout.response_ids.begin(), rollout.response_ids.end());
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
    tokens.push_back(static_cast<int64_t>(item.rollout.prompt_ids.size() + item.rollout.response_ids.size()) - 1);
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
    const HeadOutput output = StudentHead(hidden_NH, student->lm_head(), targets, head, at::Tensor());
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
