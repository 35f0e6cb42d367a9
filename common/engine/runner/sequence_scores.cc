#include "common/engine/runner/sequence_scores.h"

#include <cmath>

#include "kernels/torch/head/scoring_head.h"

namespace taopd {
namespace {

template <typename T>
std::vector<T> ToVector(const at::Tensor& tensor) {
  const at::Tensor contiguous = tensor.contiguous();
  const T* data = contiguous.const_data_ptr<T>();
  return std::vector<T>(data, data + contiguous.numel());
}

// A copy on `device`, so that nothing refers to the request afterwards.
at::Tensor ToTensor(const int32_t* ids, at::IntArrayRef shape, at::Device device) {
  const at::Tensor view =
      at::from_blob(const_cast<int32_t*>(ids), shape, at::TensorOptions().dtype(at::kInt));
  return device.is_cpu() ? view.clone() : view.to(device);
}

}  // namespace

absl::StatusOr<ScoreRows> ScoreSequence(const at::Tensor& hidden_PH, const at::Tensor& lm_head_VH,
                                        const InferenceRequest& request, int64_t workspace_bytes) {
  const ScoreParams& params = *request.score;
  const int64_t num_rows = static_cast<int64_t>(request.token_ids.size()) - params.start;
  const at::Device device = hidden_PH.device();

  ScoringOptions options;
  options.top_k = params.top_k;
  options.temperature = params.temperature;
  options.entropy = params.entropy;
  options.rank = params.rank;
  options.dense = params.dense;
  options.workspace_bytes = workspace_bytes;
  const at::Tensor sampled_ids_R =
      ToTensor(request.token_ids.data() + params.start, {num_rows}, device);
  at::Tensor candidate_ids_RM;
  if (params.num_candidates > 0) {
    candidate_ids_RM =
        ToTensor(params.candidate_ids.data(), {num_rows, params.num_candidates}, device);
  }
  const ScoringOutput output =
      ScoreRowsOfHead(hidden_PH.narrow(0, params.start - 1, num_rows), lm_head_VH, sampled_ids_R,
                      candidate_ids_RM, options);

  ScoreRows rows;
  rows.num_rows = num_rows;
  rows.top_k = params.top_k;
  rows.sampled_log_probs = ToVector<float>(output.sampled_log_probs_N);
  // One NaN or +inf among a row's logits makes its normaliser NaN, and with it every log-prob.
  for (int64_t r = 0; r < num_rows; ++r) {
    if (std::isnan(rows.sampled_log_probs[r])) {
      return Internal("the model's logits for position ", params.start + r, " are not finite");
    }
  }
  if (params.top_k > 0) {
    rows.ids = ToVector<int32_t>(output.ids_Nk);
    rows.log_probs = ToVector<float>(output.log_probs_Nk);
  }
  rows.log_tail = ToVector<float>(output.log_tail_N);
  if (params.rank) rows.sampled_ranks = ToVector<int32_t>(output.sampled_ranks_N);
  if (params.entropy) rows.entropy = ToVector<float>(output.entropy_N);
  if (params.num_candidates > 0) {
    rows.candidate_log_probs = ToVector<float>(output.candidate_log_probs_NM);
    rows.candidate_log_tail = ToVector<float>(output.candidate_log_tail_N);
  }
  if (params.dense) rows.dense_log_probs = ToVector<float>(output.dense_log_probs_NV);
  if (params.support_stats) {
    rows.log_support_mass = ToVector<float>(output.log_support_mass_N);
    rows.log_sum_exp = ToVector<float>(output.log_sum_exp_N);
  }
  return rows;
}

}  // namespace taopd
