// The teacher's head on CUDA, on raw pointers: hidden states and lm_head go in; the exact top-k,
// the log tail, the sampled token's log-prob and rank, the entropy and the log-probs of given ids
// come out. Logits [N, V] never exist as a whole.
//
// For each row n with temperature t, it computes
//
//   z_n             = hidden_n lm_head^T / t
//   log_sum_exp_n   = log sum_v exp(z_nv), the normalizer
//   ids_n           = the k ids with the largest z_nv, in descending order; ties go to the lower id
//   log_probs_nj    = z_nv - log_sum_exp_n at v = ids_nj
//   log_tail_n      = log sum over all v outside of ids_n of exp(z_nv), minus log_sum_exp_n
//
// Shapes: N rows, H hidden, V vocabulary, k top-k, M candidates. Matrices are row-major; strides
// count elements.
//
// The caller owns all memory: every pointer of FusedScoringProblem and FusedScoringResult and the
// workspace are device memory. They must stay valid, and the caller must not write to them, until
// the enqueued work is done. The structs themselves are only read during the call.
//
// The rows are cut into chunks that fit the workspace. cuBLASLt computes a chunk's logits with
// float32 accumulators and results. Then one block of threads per row reads the row once and keeps
// the maximum, the sum of exponentials and the sum for the entropy of each tile of kScoringTile
// columns. The top-k are in the tiles whose maximum reaches the k-th largest tile maximum; only
// those tiles are read again. The tail is the sum over the other tokens: nothing is subtracted, so
// a tail of any size is exact.
//
// Cost: 2 N H V floating-point operations. Each element of [N, V] is written and read once as
// float32, apart from the tiles that are read again. lm_head is read once per chunk.
//
// Results repeat bit for bit. Given its logits, a row's result depends only on that row; cuBLASLt
// may round logits differently for another number of rows in the chunk.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"
#include "taopd/head/head_inputs.h"

namespace taopd {

inline constexpr int32_t kMaxScoringTopK = 1024;
inline constexpr int32_t kScoringTile = 128;

// hidden and lm_head are HeadInputs.
struct FusedScoringProblem : HeadInputs {
  int32_t top_k = 0;  // 0 <= k <= min(V, kMaxScoringTopK)
  // int32 [N] in [0, V); null: no sampled tokens.
  const int32_t* sampled_ids_N = nullptr;
  // int32 [N, M] in [0, V), contiguous; an id may occur more than once. Null if M = 0.
  const int32_t* candidate_ids_NM = nullptr;
  int32_t num_candidates = 0;  // M >= 0
};

// Bits of FusedScoringResult::errors.
enum ScoringError : int32_t {
  kScoringSampledIdOutOfRange = 1,
  kScoringCandidateIdOutOfRange = 2,
};

// All arrays are contiguous. log_tail_N, log_support_mass_N and log_sum_exp_N are always needed.
// The others may be null, and are then not computed, unless the comment says when they are needed.
// A row with NaN or +inf logits has NaN numbers and ids that are distinct and in range.
struct FusedScoringResult {
  // int32 [N, k]; NaN logits count as -inf. Needed if k > 0.
  int32_t* ids_Nk = nullptr;
  // [N, k]. Needed if k > 0.
  float* log_probs_Nk = nullptr;
  // [N]; -inf if k = V.
  float* log_tail_N = nullptr;
  // [N], log-sum-exp over ids minus the normalizer; -inf if k = 0.
  float* log_support_mass_N = nullptr;
  // [N], the normalizer.
  float* log_sum_exp_N = nullptr;
  // [N]. Needed with sampled_ids_N.
  float* sampled_log_probs_N = nullptr;
  // int32 [N], the number of ids whose logit is at least the sampled one's. Needs sampled_ids_N.
  int32_t* sampled_ranks_N = nullptr;
  // [N], the entropy of the whole distribution in nats.
  float* entropy_N = nullptr;
  // [N, M]. Needed if M > 0.
  float* candidate_log_probs_NM = nullptr;
  // [N], log of the sum over all v outside of ids and of the row's candidates of exp(z_nv), minus
  // the normalizer; -inf if nothing is outside. Each row is read a second time for it.
  float* candidate_log_tail_N = nullptr;
  // One word into which the ScoringError bits of all rows are or-ed. Needed with sampled or
  // candidate ids; the caller sets it to 0 before the call and reads it when the work is done. The
  // log-prob of a wrong id is NaN; no memory outside of the arrays is touched.
  int32_t* errors = nullptr;
};

// A call with chunks of R >= 1 rows needs a workspace of
// ScoringFixedBytes() + R * ScoringBytesPerRow() bytes. Neither function reads a pointer of the
// problem.
int64_t ScoringBytesPerRow(const FusedScoringProblem& problem);
int64_t ScoringFixedBytes();

// Enqueues the computation on context.stream and returns without waiting. Needs context.cublaslt
// and a workspace for at least one row; a larger one makes larger chunks. Returns an empty string,
// or the first problem with the argument's name, its value and its limit; taopd/base/device.h says
// what was enqueued in that case. Errors in ids are found only on the device
// (FusedScoringResult::errors). Does nothing if num_rows is 0. Any thread may call it.
std::string FusedScoring(const FusedScoringProblem& problem, const FusedScoringResult& result,
                         const DeviceContext& context);

}  // namespace taopd
