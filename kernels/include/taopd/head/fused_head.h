// The student's head with its loss on CUDA, on raw pointers: hidden states and lm_head in, loss,
// metrics and both gradients out. [N, V] never exists: logits live for a few rows at a time, and
// what the gradients need of them (E below) for one chunk of rows, within the caller's workspace.
//
// Shapes: N rows (response positions), H hidden, V vocabulary, k support size, M kNumHeadMetrics.
// All pointers are device memory; matrices are row-major, strides are in elements.
//
// The passes over a chunk of rows (kernels/cuda):
//   1. logits = hidden lm_head^T by cuBLASLt, float32 accumulators and results, of a few rows;
//   2. one read of those rows: the support leaves the row, the rest gives the tail's log-sum-exp
//   and
//      the entropy's sum, and E_nv = exp((z_nv - r_n) / temperature) is written in hidden's dtype.
//      r_n is the largest logit so far; where a logit exceeds it by kMaxOverReference the row's
//      sums and E are rescaled, so that nothing overflows and a tail of any size is exact;
//   3. the objective, one thread per row in float64 on O(k) numbers: loss, metrics, a row scale s_n
//      and the k + 1 entries of E that are not a p(v);
//   4. d hidden = diag(s) (E lm_head), d lm_head += E^T (diag(s) hidden): cuBLASLt on E, float32
//      accumulators.
// Objectives without a dense gradient (kNoDenseGradient) skip E and pass 4: d hidden is the sum of
// k + 1 rows of lm_head, d lm_head the sum of rows of hidden in the order of their vocabulary ids.
//
// Deterministic: the same call gives the same bits; no floating-point atomics.
// Cost: 6 N H V flops and, per element of [N, V], 4 bytes written and read and 2 (bfloat16) written
// and read twice.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"
#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

struct FusedHeadProblem {
  DataType dtype = DataType::kBFloat16;  // of hidden, lm_head and d hidden
  int64_t num_rows = 0;                  // N >= 0
  int64_t hidden_size = 0;               // H >= 1
  // V >= 1, fits int32. The first V rows of lm_head are the vocabulary; a padded lm_head's other
  // rows are neither read nor given a gradient.
  int64_t vocabulary_size = 0;
  const void* hidden_NH = nullptr;
  int64_t hidden_stride = 0;  // >= H
  const void* lm_head_VH = nullptr;
  int64_t lm_head_stride = 0;  // >= H

  // Null where the objective does not need it (its needs in taopd/objective/objective.h);
  // sampled_ids_N and row_weights_N are always needed. Contiguous.
  const int32_t* support_ids_Nk = nullptr;  // distinct, in [0, V); -1 at a row's end is padding
  const float* teacher_log_probs_Nk = nullptr;
  int32_t k = 0;
  const float* teacher_log_tail_N = nullptr;  // NaN, or null: made from the support's mass
  const int32_t* sampled_ids_N = nullptr;     // in [0, V)
  const float* teacher_sampled_log_probs_N = nullptr;
  const float* teacher_entropy_N = nullptr;
  const float* behavior_log_probs_N = nullptr;  // null: on-policy
  const float* row_weights_N = nullptr;

  ObjectiveTerms objective;
  double temperature = 1;  // > 0
  // See kTopKOverlap. Needs k <= kMaxTopKMetrics, or an objective over the whole vocabulary.
  bool top_k_metrics = false;
};

// Bits of FusedHeadResult::errors.
enum HeadError : int32_t {
  kHeadSupportIdOutOfRange = 1,
  kHeadSampledIdOutOfRange = 2,
  kHeadDuplicateSupportId = 4,
  kHeadIdBehindPadding = 8,
  kHeadEmptySupport = 16,       // and the objective needs one
  kHeadIncompleteSupport = 32,  // and the objective needs the whole vocabulary
};

struct FusedHeadResult {
  float* loss_N = nullptr;        // unweighted
  float* metrics_NM = nullptr;    // contiguous, columns of taopd/objective/row_metrics.h
  void* d_hidden_NH = nullptr;    // d (sum_n w_n loss_n) / d hidden, contiguous; null: skipped
  float* d_lm_head_VH = nullptr;  // += ; contiguous [V, H]; null: skipped
  // One word; the caller sets it to 0 before. Errors of all rows are or-ed into it; a row with one
  // has an unspecified loss and gradient, and no memory outside of the arrays is touched.
  int32_t* errors = nullptr;
};

inline constexpr int32_t kMaxTopKMetrics = 1024;
inline constexpr float kMaxOverReference = 20.0f;  // nats

// Rows per chunk and the layout of the workspace; also what a caller asks for how much a chunk
// takes.
struct FusedHeadPlan {
  int64_t chunk_rows = 0;   // rows of E: d lm_head is read and written once per chunk
  int64_t logits_rows = 0;  // rows of float32 logits, <= chunk_rows
  int64_t bytes = 0;        // of the workspace that this plan uses
};

// The largest chunks that fit workspace_bytes; chunk_rows = 0 when one row does not, and bytes is
// then what one row takes.
FusedHeadPlan PlanFusedHead(const FusedHeadProblem& problem, int64_t workspace_bytes);

std::string FusedHead(const FusedHeadProblem& problem, const FusedHeadResult& result,
                      const DeviceContext& context);

}  // namespace taopd
