#include "trainer/step/train_step.h"

#include <algorithm>
#include <cmath>

#include "common/base/log.h"
#include "common/base/random.h"
#include "trainer/step/full_kl.h"

namespace taopd {
namespace {

double Mean(double sum, int64_t count) {
  return count > 0 ? sum / static_cast<double>(count) : 0.0;
}

void AddRolloutMetrics(const std::vector<Rollout>& rollouts, Metrics* metrics) {
  int64_t num_tokens = 0, longest = 0, truncated = 0;
  for (const Rollout& rollout : rollouts) {
    const auto length = static_cast<int64_t>(rollout.response_ids.size());
    num_tokens += length;
    longest = std::max(longest, length);
    truncated += rollout.finish == FinishReason::kLength ? 1 : 0;
  }
  const auto count = static_cast<int64_t>(rollouts.size());
  metrics->emplace_back("rollout/response_length_mean",
                        Mean(static_cast<double>(num_tokens), count));
  metrics->emplace_back("rollout/response_length_max", static_cast<double>(longest));
  metrics->emplace_back("rollout/truncated_share", Mean(static_cast<double>(truncated), count));
  metrics->emplace_back("rollout/tokens", static_cast<double>(num_tokens));
}

void AddLossMetrics(const RowSums& sums, int64_t num_minis, int64_t num_updates,
                    double grad_norm_sum, double lr, const ObjectiveTerms& terms,
                    Metrics* metrics) {
  const int64_t rows = sums.num_rows;
  metrics->emplace_back("loss/mean", Mean(sums.weighted_loss, num_minis));
  metrics->emplace_back("loss/row_mean", Mean(sums.loss, rows));
  for (int32_t i = 0; terms.num_terms > 1 && i < terms.num_terms; ++i) {
    metrics->emplace_back(Concat("loss/term/", InfoOf(terms.term[i].objective).name),
                          Mean(sums.term_loss[i], rows));
  }
  metrics->emplace_back("loss/grad_norm", Mean(grad_norm_sum, num_updates));
  metrics->emplace_back("optim/lr", lr);
}

// What the rows say of student and teacher: means over the rows, or counts.
void AddPolicyMetrics(const RowSums& sums, const SupportOptions& support, bool overlap,
                      Metrics* metrics) {
  const int64_t rows = sums.num_rows;
  const auto mean = [&](const char* name, HeadMetric column) {
    metrics->emplace_back(name, Mean(sums.head_metrics[column], rows));
  };
  mean("policy/student_tail", kStudentTail);
  mean("policy/teacher_tail", kTeacherTail);
  mean("policy/student_mass", kStudentMass);
  mean("policy/teacher_mass", kTeacherMass);
  mean("policy/entropy", kStudentEntropy);
  mean("policy/sampled_log_ratio", kSampledLogRatio);
  mean("policy/sampled_outside", kSampledOutside);
  mean("policy/tail_growth", kTailGrowth);
  if (overlap) {
    metrics->emplace_back("policy/overlap",
                          Mean(sums.head_metrics[kTopKOverlap], rows) / support.teacher_top_k);
    mean("policy/overlap_advantage", kTopKOverlapAdvantage);
  } else if (support.kind == SupportKind::kUnion) {
    metrics->emplace_back("policy/overlap", Mean(sums.shared, rows) / support.student_top_k);
  }
  metrics->emplace_back("policy/limited_values", sums.head_metrics[kNumLimited]);
  metrics->emplace_back("policy/derived_tails", sums.head_metrics[kTailWasDerived]);
  metrics->emplace_back("policy/clamped_tails", sums.head_metrics[kTailWasClamped]);
  metrics->emplace_back("policy/truncated_rho", sums.head_metrics[kRhoTruncated]);
  metrics->emplace_back("policy/kl_behavior", Mean(sums.behavior_gap, rows));
}

// The overlap of the two top-k is of the teacher's support; the union's follows from its size.
bool MeasuresOverlap(const TrainConfig& config, const SupportOptions& support) {
  return config.objective.overlap &&
         (support.kind == SupportKind::kTeacher || support.kind == SupportKind::kFullVocabulary);
}

}  // namespace

SupportOptions MakeSupportOptions(const TrainConfig& config, int64_t vocab_size) {
  const uint32_t needs = NeedsOf(config.objective.Terms());
  const auto teacher_top_k = static_cast<int32_t>(config.teacher.top_k);
  const auto student_top_k = config.objective.student_top_k > 0
                                 ? static_cast<int32_t>(config.objective.student_top_k)
                                 : teacher_top_k;
  SupportOptions support;
  support.teacher_top_k = teacher_top_k;
  if (needs & kNeedsFullVocabulary) {
    support.kind = SupportKind::kFullVocabulary;
  } else if (config.objective.support == "student") {
    support.kind = SupportKind::kStudent;
    support.teacher_top_k = 0;
    support.student_top_k = student_top_k;
  } else if (config.objective.support == "union") {
    support.kind = SupportKind::kUnion;
    support.student_top_k = student_top_k;
  }
  support.teacher_entropy = (needs & kNeedsTeacherEntropy) != 0;
  support.temperature = static_cast<float>(config.teacher.temperature);
  support.vocab_size = vocab_size;
  return support;
}

std::vector<RolloutRequest> MakeRolloutRequests(const TrainConfig& config, int64_t step,
                                                const std::vector<const PromptRecord*>& prompts) {
  const int32_t student_top_k = MakeSupportOptions(config, 0).student_top_k;
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
      request.sampling.num_log_probs = student_top_k;
      request.sampling.seed =
          DeriveSeed(config.run.seed, "rollout",
                     {static_cast<uint64_t>(step), prompt, static_cast<uint64_t>(sample)});
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

void ForwardBackward(Decoder* student, const HeadOptions& head, const ScoredBatch& batch,
                     int64_t begin, int64_t end, const std::vector<double>& weights,
                     RowSums* sums) {
  std::vector<const ScoredRollout*> sequences;
  std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>> tokens;
  for (int64_t i = begin; i < end; ++i) {
    sequences.push_back(&batch.item(i));
    tokens.emplace_back(&batch.item(i).rollout.prompt_ids, &batch.item(i).rollout.response_ids);
  }
  const StudentInput input = MakeStudentInput(tokens, student->device());
  const HeadTargets targets = MakeHeadTargets(sequences, weights, student->device());
  const bool full_vocabulary = (NeedsOf(head.objective) & kNeedsFullVocabulary) != 0;
  const int64_t vocab_size = student->config().vocab_size;

  const at::Tensor hidden_TH = student->Forward(input.batch);
  const at::Tensor hidden_NH = hidden_TH.index_select(0, input.rows_N);
  HeadOutput output;
  HeadOptions loss_head = head;
  loss_head.top_k_metrics = head.top_k_metrics && !full_vocabulary;
  const at::Tensor loss = StudentHeadLoss(
      hidden_NH, student->lm_head(),
      full_vocabulary ? WithFullVocabulary(targets, sequences, vocab_size) : targets, loss_head,
      &output);
  loss.backward();
  at::Tensor metrics_NM = output.metrics_NM;
  if (full_vocabulary) {
    HeadOptions metrics_head = head;
    metrics_head.objective = *FindObjective("ta_opd");
    const HeadOutput top_k = StudentHead(hidden_NH.detach(), student->lm_head().detach(), targets,
                                         metrics_head, at::Tensor());
    sums->ta_loss += top_k.loss_N.to(at::kCPU, at::kDouble).sum().item<double>();
    metrics_NM = top_k.metrics_NM;
  }

  // Summed in row order in double: the same whatever the micro-batches.
  const at::Tensor row_loss = output.loss_N.to(at::kCPU).contiguous();
  const at::Tensor loss_metrics = output.metrics_NM.contiguous();
  metrics_NM = metrics_NM.contiguous();
  const at::Tensor behavior = targets.behavior_log_probs_N.to(at::kCPU).contiguous();
  const at::Tensor row_weights = targets.row_weights_N.to(at::kCPU).contiguous();
  const float* losses = row_loss.const_data_ptr<float>();
  const float* metrics = metrics_NM.const_data_ptr<float>();
  const int64_t num_rows = row_loss.size(0);
  for (int64_t n = 0; n < num_rows; ++n) {
    sums->loss += losses[n];
    sums->weighted_loss += static_cast<double>(losses[n]) * row_weights.const_data_ptr<float>()[n];
    for (int m = 0; m < kNumHeadMetrics; ++m)
      sums->head_metrics[m] += metrics[n * kNumHeadMetrics + m];
    for (int i = 0; i < kMaxObjectiveTerms; ++i) {
      sums->term_loss[i] +=
          loss_metrics.const_data_ptr<float>()[n * kNumHeadMetrics + kTermLoss + i];
    }
    sums->behavior_gap +=
        behavior.const_data_ptr<float>()[n] - metrics[n * kNumHeadMetrics + kSampledLogProb];
  }
  sums->shared += static_cast<double>(targets.support_ids_Nk.lt(0).sum().item<int64_t>());
  for (const ScoredRollout* sequence : sequences) {
    sums->shared -= static_cast<double>(sequence->scores.num_beyond_vocabulary);
  }
  sums->num_rows += num_rows;
}

std::optional<StepResult> Train(const StepContext& context, int64_t step, double lr,
                                const std::vector<const PromptRecord*>& prompts,
                                StepFailure* failure) {
  const TrainConfig& config = *context.config;
  const absl::Time start = context.clock->Now();
  absl::Duration waited;

  // 1. Roll out with the present weights; each finished rollout goes to the teacher at once.
  const SupportOptions support = MakeSupportOptions(config, context.student->config().vocab_size);
  HeadOptions head = context.head;
  head.top_k_metrics = MeasuresOverlap(config, support);
  const auto batch = ScoredBatch::Start(context.rollout_engine, context.teacher,
                                        MakeRolloutRequests(config, step, prompts), support,
                                        Concat("step-", step + 1));

  StepResult result;
  RowSums sums;
  FullKl full_kl;
  double grad_norm_sum = 0;
  int64_t num_updates = 0, num_minis = 0;
  const int64_t sequences_per_mini = config.trainer.mini_batch_size * config.rollout.n;
  for (int64_t begin = 0; begin < batch->size(); begin += sequences_per_mini) {
    const int64_t end = begin + sequences_per_mini;
    ++num_minis;

    // 2. Wait for this mini-batch's scores; the rest goes on meanwhile.
    const absl::Time wait_start = context.clock->Now();
    absl::Status scored = batch->WaitScored(begin, end, context.on_wait);
    if (scored.ok() && begin == 0 && config.objective.full_kl_rows > 0 &&
        support.kind != SupportKind::kFullVocabulary) {
      scored = MeasureFullKl(context, *batch, support, end, step, &full_kl);
    }
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
      input_tokens.push_back(
          static_cast<int64_t>(rollout.prompt_ids.size() + rollout.response_ids.size()) - 1);
    }
    const std::vector<double> weights = SequenceWeights(context.aggregation, response_lengths);
    int64_t done = 0;
    for (int64_t micro_end : MicroBatchEnds(input_tokens, config.trainer.micro_batch_tokens)) {
      const std::vector<double> micro_weights(weights.begin() + done, weights.begin() + micro_end);
      ForwardBackward(context.student, head, *batch, begin + done, begin + micro_end, micro_weights,
                      &sums);
      context.optimizer->AccumulateGradients();
      done = micro_end;
    }

    // 4. Update, once no rollout reads the weights any more.
    batch->WaitGenerated();
    const double grad_norm = context.optimizer->GradientNorm();
    if (!std::isfinite(grad_norm) || !std::isfinite(sums.weighted_loss)) {
      LogWarning("update skipped: the loss or its gradient is not finite",
                 {{"step", step + 1}, {"grad_norm", grad_norm}});
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
  int64_t prompt_tokens = 0, num_beyond_vocabulary = 0;
  for (int64_t i = 0; i < batch->size(); ++i) {
    num_beyond_vocabulary += batch->item(i).scores.num_beyond_vocabulary;
    prompt_tokens += static_cast<int64_t>(batch->item(i).rollout.prompt_ids.size());
    result.rollouts.push_back(batch->item(i).rollout);
  }
  AddLossMetrics(sums, num_minis, num_updates, grad_norm_sum, lr, head.objective, &result.metrics);
  AddPolicyMetrics(sums, support, head.top_k_metrics, &result.metrics);
  if (num_beyond_vocabulary > 0) {
    result.metrics.emplace_back("teacher/beyond_vocabulary",
                                static_cast<double>(num_beyond_vocabulary));
  }
  if (support.kind == SupportKind::kFullVocabulary && head.objective.num_terms == 1) {
    full_kl = {sums.loss, sums.ta_loss, sums.num_rows};
  }
  if (full_kl.num_rows > 0) {
    result.metrics.emplace_back("policy/full_kl", Mean(full_kl.full_kl, full_kl.num_rows));
    result.metrics.emplace_back("policy/truncation_gap",
                                Mean(full_kl.full_kl - full_kl.ta_opd, full_kl.num_rows));
    result.metrics.emplace_back("policy/full_kl_rows", static_cast<double>(full_kl.num_rows));
  }
  AddRolloutMetrics(result.rollouts, &result.metrics);
  const double step_s = absl::ToDoubleSeconds(context.clock->Now() - start);
  const auto step_tokens = static_cast<double>(prompt_tokens + sums.num_rows);
  result.metrics.emplace_back("optim/skipped_updates",
                              static_cast<double>(result.num_skipped_updates));
  result.metrics.emplace_back("time/step_s", step_s);
  result.metrics.emplace_back("time/teacher_wait_s", absl::ToDoubleSeconds(waited));
  result.metrics.emplace_back("time/train_s", step_s - absl::ToDoubleSeconds(waited));
  result.metrics.emplace_back("time/tokens_per_s", step_s > 0 ? step_tokens / step_s : 0.0);
  return result;
}

}  // namespace taopd
