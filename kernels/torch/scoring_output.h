// The options and the results of the teacher's head (kernels/torch/head/scoring_head.h), which its
// kernels and its composition share.
//
// Shapes: N rows, V vocabulary, k top-k, M candidates.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>

namespace taopd {

struct ScoringOptions {
  int32_t top_k = 0;         // 0 <= k <= V
  double temperature = 1.0;  // > 0, finite; logits are divided by it
  // The outputs to compute besides those that are always computed.
  bool entropy = false;
  bool rank = false;  // rank of the sampled tokens
  bool dense = false;
  // The memory that the logits of a chunk may take. At least one row is computed at a time.
  int64_t workspace_bytes = 256 << 20;
};

// All tensors are on the CPU and contiguous; ids and ranks are int32, numbers float32. Outputs that
// were not requested are undefined.
struct ScoringOutput {
  // In descending order of logit; ties go to the lower id.
  at::Tensor ids_Nk;
  at::Tensor log_probs_Nk;
  // Log-sum-exp over the complement of ids, minus the normalizer; -inf if k = V.
  at::Tensor log_tail_N;
  // Defined if sampled_ids_N is given.
  at::Tensor sampled_log_probs_N;
  // The number of ids whose logit is at least the sampled one's.
  at::Tensor sampled_ranks_N;
  // The entropy in nats.
  at::Tensor entropy_N;
  at::Tensor candidate_log_probs_NM;
  // Like log_tail_N, over the complement of ids and candidates together.
  at::Tensor candidate_log_tail_N;
  // The only output of size [N, V].
  at::Tensor dense_log_probs_NV;
  // Log-sum-exp over ids, minus the normalizer.
  at::Tensor log_support_mass_N;
  // The normalizer, of logits / temperature.
  at::Tensor log_sum_exp_N;

  // Returns all of the above, defined or not. Each has N rows.
  std::array<at::Tensor*, 11> Tensors() {
    return {&ids_Nk,
            &log_probs_Nk,
            &log_tail_N,
            &sampled_log_probs_N,
            &sampled_ranks_N,
            &entropy_N,
            &candidate_log_probs_NM,
            &candidate_log_tail_N,
            &dense_log_probs_NV,
            &log_support_mass_N,
            &log_sum_exp_N};
  }
};

}  // namespace taopd
