#include "trainer/step/train_step.h"

#include <algorithm>
#include <cmath>

#include "common/base/log.h"
#include "common/base/random.h"

namespace taopd {
namespace {

template <typename T>
at::Tensor ToTensor(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType dtype, at::Device device) {
  return at::from_blob(const_cast<T*>(values.data()), shape, at::TensorOptions().dtype(dtype)).clone().to(device);
}

double Mean(double sum, int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0.0; }

void AddRolloutMetrics(const std::vector<Rollout>& rollouts, Metrics* metrics) {
  int64_t num_tokens = 0, longest = 0, truncated = 0;
  for (const Rollout& rollout : rollouts) {
    const auto length = static_cast<int64_t>(rollout.response_ids.size());
    num_tokens += length;
    longest = std::max(longest, length);
    truncated += rollout.finish == FinishReason::kLength ? 1 : 0;
  }
  const auto count = static_cast<int64_t>(rollouts.size());
  metrics->emplace_back("rollout/response_length_mean", Mean(static_cast<double>(num_tokens), count));
  metrics->emplace_back("rollout/response_length_max", static_cast<double>(longest));
  metrics->emplace_back("rollout/truncated_share", Mean(static_cast<double>(truncated), count));
  metrics->emplace_back("rollout/tokens", static_cast<double>(num_tokens));
}

void AddLossMetrics(const RowSums& sums, int64_t num_minis, int64_t num_updates, double grad_norm_sum, double lr,
                    Metrics* metrics) {
  const int64_t rows = sums.num_rows;
  metrics->emplace_back("loss/mean", Mean(sums.weighted_loss, num_minis));
  metrics->emplace_back("loss/row_mean", Mean(sums.loss, rows));
  metrics->emplace_back("loss/grad_norm", Mean(grad_norm_sum, num_updates));
  metrics->emplace_back("optim/lr", lr);
  metrics->emplace_back("policy/student_tail", Mean(sums.head_metrics[kStudentTail], rows));
  metrics->emplace_back("policy/teacher_tail", Mean(sums.head_metrics[kTeacherTail], rows));
  metrics->emplace_back("policy/entropy", Mean(sums.head_metrics[kStudentEntropy], rows));
  metrics->emplace_back("policy/sampled_log_ratio", Mean(sums.head_metrics[kSampledLogRatio], rows));
  metrics->emplace_back("policy/sampled_outside", Mean(sums.head_metrics[kSampledOutside], rows));
  metrics->emplace_back("policy/limited_values", sums.head_metrics[kNumLimited]);
  metrics->emplace_back("policy/kl_behavior", Mean(sums.behavior_gap, rows));
}

}  // namespace

std::vector<RolloutRequest> MakeRolloutRequests(const TrainConfig& config, int64_t step,
                                                const std::vector<const PromptRecord*>& prompts) {
  std::vector<RolloutRequest> requests;
  requests.reserve(prompts.size() * config.rollout.n);
  for (size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    for (int64_t sample = 0; sample < config.rollout.n; ++sample) {
      RolloutRequest request;
      request.prompt_ids = prompts[prompt]->prompt_ids;
      request.sampling.max_new_tokens = config.data.max_response_length;
      request.sampling.temperature = static_cast<float>(config.rollout.temperature);
      request.sampling.top_p = static_cast<float>(config.rollout.top_p);
      request.sampling.top_k = static_cast<int32_t>(config.rollout.top_k);
      request.sampling.seed = DeriveSeed(config.run.seed, "rollout",
                                         {static_cast<uint64_t>(step), prompt, static_cast<uint64_t>(sample)});
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

StudentInput MakeStudentInput(
    const std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>>& sequences,
    at::Device device) {
  std::vector<std::vector<int32_t>> inputs;
  std::vector<int64_t> rows;
  int64_t offset = 0;
  for (const auto& [prompt_ids, response_ids] : sequences) {
    std::vector<int32_t> input = *prompt_ids;
    input.insert(input.end(), response_ids->begin(), response_ids->end() - 1);  // the last token predicts nothing
    const auto prompt_length = static_cast<int64_t>(prompt_ids->size());
    const auto length = static_cast<int64_t>(input.size());
    for (int64_t t = prompt_length - 1; t < length; ++t) rows.push_back(offset + t);
    offset += length;
    inputs.push_back(std::move(input));
  }
  return {PackedBatch::FromSequences(inputs, device),
          ToTensor(rows, {static_cast<int64_t>(rows.size())}, at::kLong, device)};
}

HeadTargets MakeHeadTargets(const std::vector<const ScoredRollout*>& sequences, const std::vector<double>& weights,
                            at::Device device) {
  std::vector<int32_t> support_ids, sampled_ids;
  std::vector<float> teacher_log_probs, teacher_log_tail, teacher_sampled, behavior, row_weights;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Rollout& rollout = sequences[i]->rollout;
    const TeacherScores& scores = sequences[i]->scores;
    auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
    append(&support_ids, scores.ids);
    append(&teacher_log_probs, scores.log_probs);
    append(&teacher_log_tail, scores.log_tail);
    append(&teacher_sampled, scores.sampled_log_probs);
    append(&sampled_ids, rollout.response_ids);
    append(&behavior, rollout.behavior_log_probs);
    row_weights.insert(row_weights.end(), rollout.response_ids.size(), static_cast<float>(weights[i]));
  }
  const auto num_rows = static_cast<int64_t>(sampled_ids.size());
  const int64_t k = num_rows > 0 ? static_cast<int64_t>(support_ids.size()) / num_rows : 0;
  HeadTargets targets;
  targets.support_ids_Nk = ToTensor(support_ids, {num_rows, k}, at::kInt, device);
  targets.teacher_log_probs_Nk = ToTensor(teacher_log_probs, {num_rows, k}, at::kFloat, device);
  targets.teacher_log_tail_N = ToTensor(teacher_log_tail, {num_rows}, at::kFloat, device);
  targets.sampled_ids_N = ToTensor(sampled_ids, {num_rows}, at::kInt, device);
  targets.teacher_sampled_log_probs_N = ToTensor(teacher_sampled, {num_rows}, at::kFloat, device);
  targets.behavior_log_probs_N = ToTensor(behavior, {num_rows}, at::kFloat, device);
  targets.row_weights_N = ToTensor(row_weights, {num_rows}, at::kFloat, device);
  return targets;
}

void ForwardBackward(Decoder* student, const HeadOptions& head, const ScoredBatch& batch, int64_t begin, int64_t end,
                     const std::vector<double>& weights, RowSums* sums) {
  std::vector<const ScoredRollout*> sequences;
  std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>> tokens;
  for (int64_t i = begin; i < end; ++i) {
    sequences.push_back(&batch.item(i));
    tokens.emplace_back(&batch.item(i).rollout.prompt_ids, &batch.item(i).rollout.response_ids);
  }
  const StudentInput input = MakeStudentInput(tokens, student->device());
  const HeadTargets targets = MakeHeadTargets(sequences, weights, student->device());

  const at::Tensor hidden_TH = student->Forward(input.batch);
  const at::Tensor hidden_NH = hidden_TH.index_select(0, input.rows_N);
  HeadOutput output;
  const at::Tensor loss = StudentHeadLoss(hidden_NH, student->lm_head(), targets, head, &output);
  loss.backward();

  // Summed in row order in double: the same whatever the micro-batches.
  const at::Tensor row_loss = output.loss_N.to(at::kCPU).contiguous();
  const at::Tensor metrics_NM = output.metrics_NM.to(at::kCPU).contiguous();
  const at::Tensor behavior = targets.behavior_log_probs_N.to(at::kCPU).contiguous();
  const at::Tensor row_weights = targets.row_weights_N.to(at::kCPU).contiguous();
  const float* losses = row_loss.const_data_ptr<float>();
  const float* metrics = metrics_NM.const_data_ptr<float>();
  const int64_t num_rows = row_loss.size(0);
  for (int64_t n = 0; n < num_rows; ++n) {
    sums->loss += losses[n];
    sums->weighted_loss += static_cast<double>(losses[n]) * row_weights.const_data_ptr<float>()[n];
    for (int m = 0; m < kNumHeadMetrics; ++m) sums->head_metrics[m] += metrics[n * kNumHeadMetrics + m];
    sums->behavior_gap += behavior.const_data_ptr<float>()[n] - metrics[n * kNumHeadMetrics + kSampledLogProb];
  }
  sums->num_rows += num_rows;
}

std::optional<StepResult> Train(const StepContext& context, int64_t step, double lr,
                                const std::vector<const PromptRecord*>& prompts, StepFailure* failure) {
  const TrainConfig& config = *context.config;
  const absl::Time start = context.clock->Now();
  absl::Duration waited;

  // 1. Roll out with the present weights; each finished rollout goes to the teacher at once.
  ScoringParams scoring;
  scoring.top_k = static_cast<int32_t>(config.teacher.top_k);
  scoring.temperature = static_cast<float>(config.teacher.temperature);
  scoring.vocab_size = context.student->config().vocab_size;
  const auto batch = ScoredBatch::Start(context.rollout_engine, context.teacher,
                                        MakeRolloutRequests(config, step, prompts), scoring, Concat("step-", step + 1));

  StepResult result;
  RowSums sums;
  double grad_norm_sum = 0;
  int64_t num_updates = 0, num_minis = 0;
  const int64_t sequences_per_mini = config.trainer.mini_batch_size * config.rollout.n;
  for (int64_t begin = 0; begin < batch->size(); begin += sequences_per_mini) {
    const int64_t end = begin + sequences_per_mini;
    ++num_minis;

    // 2. Wait for this mini-batch's scores; the rest goes on meanwhile.
    const absl::Time wait_start = context.clock->Now();
    const absl::Status scored = batch->WaitScored(begin, end, context.on_wait);
    waited += context.clock->Now() - wait_start;
    if (!scored.ok()) {
      // Callbacks still point at the engine and the client; the rollouts end by themselves.
      batch->WaitGenerated();
      context.optimizer->ClearGradients();
      *failure = {scored, num_updates > 0};
      return std::nullopt;
    }

    // 3. Loss and gradients, in micro-batches of bounded size.
    std::vector<int64_t> response_lengths, input_tokens;
    for (int64_t i = begin; i < end; ++i) {
      const Rollout& rollout = batch->item(i).rollout;
      response_lengths.push_back(static_cast<int64_t>(rollout.response_ids.size()));
      input_tokens.push_back(static_cast<int64_t>(rollout.prompt_ids.size() + rollout.response_ids.size()) - 1);
    }
    const std::vector<double> weights = SequenceWeights(context.aggregation, response_lengths);
    int64_t done = 0;
    for (int64_t micro_end : MicroBatchEnds(input_tokens, config.trainer.micro_batch_tokens)) {
      const std::vector<double> micro_weights(weights.begin() + done, weights.begin() + micro_end);
      ForwardBackward(context.student, context.head, *batch, begin + done, begin + micro_end, micro_weights, &sums);
      context.optimizer->AccumulateGradients();
      done = micro_end;
    }

    // 4. Update, once no rollout reads the weights any more.
    batch->WaitGenerated();
    const double grad_norm = context.optimizer->GradientNorm();
    if (!std::isfinite(grad_norm) || !std::isfinite(sums.weighted_loss)) {
      LogWarning("update skipped: the loss or its gradient is not finite", {{"step", step + 1}, {"grad_norm", grad_norm}});
      context.optimizer->ClearGradients();
      ++result.num_skipped_updates;
      continue;
    }
    context.optimizer->Update(lr, grad_norm);
    grad_norm_sum += grad_norm;
    ++num_updates;
  }
  batch->WaitIdle();

  // 5. What happened.
  int64_t prompt_tokens = 0;
  for (int64_t i = 0; i < batch->size(); ++i) {
    prompt_tokens += static_cast<int64_t>(batch->item(i).rollout.prompt_ids.size());
    result.rollouts.push_back(batch->item(i).rollout);
  }
  AddLossMetrics(sums, num_minis, num_updates, grad_norm_sum, lr, &result.metrics);
  AddRolloutMetrics(result.rollouts, &result.metrics);
  const double step_s = absl::ToDoubleSeconds(context.clock->Now() - start);
  const auto step_tokens = static_cast<double>(prompt_tokens + sums.num_rows);
  result.metrics.emplace_back("optim/skipped_updates", static_cast<double>(result.num_skipped_updates));
  result.metrics.emplace_back("time/step_s", step_s);
  result.metrics.emplace_back("time/teacher_wait_s", absl::ToDoubleSeconds(waited));
  result.metrics.emplace_back("time/train_s", step_s - absl::ToDoubleSeconds(waited));
  result.metrics.emplace_back("time/tokens_per_s", step_s > 0 ? step_tokens / step_s : 0.0);
  return result;
}

}  // namespace taopd
