// The teacher's head: hidden states to exact top-k, log tail, sampled log-prob and rank, in chunks
// of rows; [N, V] never exists beyond one chunk, unless it is asked for (dense). Logits accumulate
// in fp32.
//
// Shapes: N rows, H hidden, V vocabulary, k top-k, M candidates.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace taopd {

struct ScoringOptions {
  int32_t top_k = 0;  // 0 <= k <= V
  double temperature = 1.0;
  bool entropy = false;
  bool rank = false;
  bool dense = false;
  int64_t workspace_bytes = 256 << 20;
};

// All on the CPU, contiguous. int32 ids, float32 numbers. Undefined where not asked for.
struct ScoringOutput {
  at::Tensor ids_Nk;  // by falling logit, ties by lowest id
  at::Tensor log_probs_Nk;
  at::Tensor log_tail_N;           // log-sum-exp over the complement of ids; -inf when k = V
  at::Tensor sampled_log_probs_N;  // when sampled_ids_N is given
  at::Tensor sampled_ranks_N;      // number of ids with a logit >= the sampled one's
  at::Tensor entropy_N;
  at::Tensor candidate_log_probs_NM;
  at::Tensor candidate_log_tail_N;  // log-sum-exp over the complement of ids and candidates
  at::Tensor dense_log_probs_NV;    // the one output of size [N, V]
  at::Tensor log_support_mass_N;    // log-sum-exp over ids, minus the normaliser
  at::Tensor log_sum_exp_N;         // of logits / temperature
};

// sampled_ids_N (int32 [N]) and candidate_ids_NM (int32 [N, M]) may be undefined. Ids must be in
// [0, V). A row's numbers do not depend on the other rows of the call beyond the GEMM's own
// rounding; see engine notes for how the engine makes scores independent of the batch.
ScoringOutput ScoreRowsOfHead(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                              const at::Tensor& sampled_ids_N, const at::Tensor& candidate_ids_NM,
                              const ScoringOptions& options);

}  // namespace taopd
