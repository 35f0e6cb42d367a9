#include "trainer/step/loss/head_targets.h"

#include <algorithm>
#include <limits>

#include "common/base/check.h"

namespace taopd {
namespace {

// REQUIRES: `values` has as many values as the shape.
template <typename T>
at::Tensor ToTensor(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType dtype,
                    at::Device device) {
  TAOPD_CHECK_EQ(static_cast<int64_t>(values.size()), c10::multiply_integers(shape));
  return at::from_blob(const_cast<T*>(values.data()), shape, at::TensorOptions().dtype(dtype))
      .clone()
      .to(device);
}

}  // namespace

StudentInput MakeStudentInput(const std::vector<const ScoredRollout*>& sequences, at::Device device,
                              bool share_prompts) {
  std::vector<std::vector<int32_t>> inputs;
  std::vector<int64_t> rows, parents;
  int64_t offset = 0;
  const auto add = [&](std::vector<int32_t> input, int64_t parent) {
    offset += static_cast<int64_t>(input.size());
    inputs.push_back(std::move(input));
    parents.push_back(parent);
  };
  for (size_t i = 0; i < sequences.size();) {
    const std::vector<int32_t>& prompt = sequences[i]->rollout.prompt_ids;
    size_t end = i + 1;
    while (end < sequences.size() && sequences[end]->rollout.prompt_ids == prompt) ++end;
    auto first = prompt.begin();  // the first token that each sequence has for itself
    int64_t parent = -1;
    if (share_prompts && end - i > 1 && prompt.size() > 1) {
      first = prompt.end() - 1;
      parent = static_cast<int64_t>(inputs.size());
      add({prompt.begin(), first}, -1);
    }
    for (; i < end; ++i) {
      const std::vector<int32_t>& response_ids = sequences[i]->rollout.response_ids;
      std::vector<int32_t> input(first, prompt.end());
      const auto prompt_length = static_cast<int64_t>(input.size());
      // The last token is not needed, because it predicts nothing.
      input.insert(input.end(), response_ids.begin(), response_ids.end() - 1);
      const auto length = static_cast<int64_t>(input.size());
      for (int64_t t = prompt_length - 1; t < length; ++t) rows.push_back(offset + t);
      add(std::move(input), parent);
    }
  }
  StudentInput input;
  input.batch = PackedBatch::FromSequences(inputs, device);
  if (inputs.size() > sequences.size()) input.batch.parents = std::move(parents);
  input.rows_N = ToTensor(rows, {static_cast<int64_t>(rows.size())}, at::kLong, device);
  return input;
}

at::Tensor ForwardResponses(Decoder* student, const std::vector<const ScoredRollout*>& sequences,
                            const ForwardOptions& options) {
  const StudentInput input =
      MakeStudentInput(sequences, student->device(), student->SharesPrefixes());
  const at::Tensor hidden_TH = student->Forward(input.batch, options);
  return hidden_TH.index_select(0, input.rows_N);
}

double SumRowLosses(const Decoder& student, const at::Tensor& hidden_NH, const HeadTargets& targets,
                    const HeadOptions& head) {
  const at::NoGradGuard no_grad;
  return StudentHead(hidden_NH, student.lm_head(), targets, head, at::Tensor())
      .loss_N.to(at::kDouble)
      .sum()
      .item<double>();
}

HeadTargets MakeHeadTargets(const std::vector<const ScoredRollout*>& sequences,
                            const std::vector<double>& weights, at::Device device) {
  std::vector<int32_t> support_ids, sampled_ids;
  std::vector<float> teacher_log_probs, teacher_log_tail, teacher_sampled, teacher_entropy,
      behavior, advantages, row_weights;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Rollout& rollout = sequences[i]->rollout;
    const SupportScores& scores = sequences[i]->scores;
    auto append = [](auto* to, const auto& from) {
      to->insert(to->end(), from.begin(), from.end());
    };
    append(&support_ids, scores.ids);
    append(&teacher_log_probs, scores.log_probs);
    append(&teacher_log_tail, scores.log_tail);
    append(&teacher_sampled, scores.sampled_log_probs);
    append(&teacher_entropy, scores.entropy);
    append(&sampled_ids, rollout.response_ids);
    append(&behavior, rollout.behavior_log_probs);
    advantages.insert(advantages.end(), rollout.response_ids.size(),
                      static_cast<float>(sequences[i]->advantage));
    row_weights.insert(row_weights.end(), rollout.response_ids.size(),
                       static_cast<float>(weights[i] * scores.weight));
  }
  const auto num_rows = static_cast<int64_t>(sampled_ids.size());
  const int64_t k = num_rows > 0 ? static_cast<int64_t>(support_ids.size()) / num_rows : 0;
  HeadTargets targets;
  targets.support_ids_Nk = ToTensor(support_ids, {num_rows, k}, at::kInt, device);
  targets.teacher_log_probs_Nk = ToTensor(teacher_log_probs, {num_rows, k}, at::kFloat, device);
  targets.teacher_log_tail_N = ToTensor(teacher_log_tail, {num_rows}, at::kFloat, device);
  targets.sampled_ids_N = ToTensor(sampled_ids, {num_rows}, at::kInt, device);
  targets.teacher_sampled_log_probs_N = ToTensor(teacher_sampled, {num_rows}, at::kFloat, device);
  if (!teacher_entropy.empty()) {
    targets.teacher_entropy_N = ToTensor(teacher_entropy, {num_rows}, at::kFloat, device);
  }
  targets.behavior_log_probs_N = ToTensor(behavior, {num_rows}, at::kFloat, device);
  targets.advantages_N = ToTensor(advantages, {num_rows}, at::kFloat, device);
  targets.row_weights_N = ToTensor(row_weights, {num_rows}, at::kFloat, device);
  return targets;
}

HeadTargets WithFullVocabulary(HeadTargets targets,
                               const std::vector<const ScoredRollout*>& sequences,
                               int64_t vocab_size) {
  const int64_t num_rows = targets.sampled_ids_N.size(0);
  const at::Device device = targets.sampled_ids_N.device();
  at::Tensor log_probs_NV =
      at::empty({num_rows, vocab_size}, at::TensorOptions().dtype(at::kFloat));
  float* to = log_probs_NV.mutable_data_ptr<float>();
  for (const ScoredRollout* sequence : sequences) {
    to = std::ranges::copy(sequence->scores.dense_log_probs, to).out;
  }
  targets.support_ids_Nk =
      at::arange(vocab_size, at::TensorOptions().dtype(at::kInt).device(device))
          .unsqueeze(0)
          .expand({num_rows, vocab_size})
          .contiguous();
  targets.teacher_log_probs_Nk = log_probs_NV.to(device);
  targets.teacher_log_tail_N = at::full({num_rows}, -std::numeric_limits<float>::infinity(),
                                        at::TensorOptions().dtype(at::kFloat).device(device));
  return targets;
}

}  // namespace taopd
