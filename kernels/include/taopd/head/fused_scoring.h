// The teacher's head on CUDA, on raw pointers: hidden states to exact top-k, log tail, sampled
// log-prob and rank, entropy and log-probs at given ids, in chunks of rows within the caller's
// workspace.
//
// Shapes: N rows, H hidden, V vocabulary, k top-k, M candidates. All pointers are device memory;
// matrices are row-major, strides are in elements.
//
// The passes over a chunk: float32 logits by cuBLASLt; then one block per row reads the row once
// (per tile of kScoringTile columns: maximum, sum of exponentials, entropy's sum), selects the
// top-k among the tiles whose maximum reaches the k-th largest tile maximum, and reads only those
// tiles again. The tail is the sum over the other tokens: nothing is subtracted.
//
// Deterministic, ties by lowest id; a row's answer depends on that row only.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"

namespace taopd {

inline constexpr int32_t kMaxScoringTopK = 1024;
inline constexpr int32_t kScoringTile = 128;

struct FusedScoringProblem {
  DataType dtype = DataType::kBFloat16;  // of hidden and lm_head
  int64_t num_rows = 0;
  int64_t hidden_size = 0;
  int64_t vocabulary_size = 0;  // the first V rows of lm_head, as in taopd/head/fused_head.h
  const void* hidden_NH = nullptr;
  int64_t hidden_stride = 0;
  const void* lm_head_VH = nullptr;
  int64_t lm_head_stride = 0;
  int32_t top_k = 0;  // 0 <= k <= min(V, kMaxScoringTopK)
  double temperature = 1;
  const int32_t* sampled_ids_N = nullptr;     // null: none
  const int32_t* candidate_ids_NM = nullptr;  // null: none; contiguous
  int32_t num_candidates = 0;
};

// Bits of FusedScoringResult::errors.
enum ScoringError : int32_t {
  kScoringSampledIdOutOfRange = 1,
  kScoringCandidateIdOutOfRange = 2,
};

// Contiguous; a null pointer is not asked for (ids_Nk and log_probs_Nk only with top_k = 0).
struct FusedScoringResult {
  int32_t* ids_Nk = nullptr;  // by falling logit, ties by lowest id; NaN logits count as -inf
  float* log_probs_Nk = nullptr;
  float* log_tail_N = nullptr;          // log-sum-exp over the complement, minus the normaliser
  float* log_support_mass_N = nullptr;  // log-sum-exp over ids, minus the normaliser
  float* log_sum_exp_N = nullptr;       // the normaliser, of logits / temperature
  float* sampled_log_probs_N = nullptr;
  int32_t* sampled_ranks_N = nullptr;  // number of ids with a logit >= the sampled one's
  float* entropy_N = nullptr;          // nats
  float* candidate_log_probs_NM = nullptr;
  int32_t* errors = nullptr;  // one word, set to 0 by the caller; required with any ids
};

// Bytes of workspace per row of a chunk, and what does not depend on the rows.
int64_t ScoringBytesPerRow(const FusedScoringProblem& problem);
int64_t ScoringFixedBytes();

std::string FusedScoring(const FusedScoringProblem& problem, const FusedScoringResult& result,
                         const DeviceContext& context);

}  // namespace taopd
