// The student's head with its loss on CUDA, on raw pointers: hidden states and lm_head go in; the
// loss, the metrics and both gradients come out. Logits [N, V] never exist as a whole.
//
// For each row n with temperature t and weight w_n, it computes
//
//   z_n         = hidden_n lm_head^T / t
//   loss_n      = the objective (taopd/objective/objective.h) of softmax(z_n) and the row's targets
//   d_hidden_n  = w_n (d loss_n / d z_n) lm_head / t
//   d_lm_head  += sum_n w_n (d loss_n / d z_n)^T hidden_n / t
//
// Shapes: N rows (response positions), H hidden, V vocabulary, k support size, M kNumHeadMetrics.
// Matrices are row-major; strides count elements.
//
// The caller owns all memory: every pointer of FusedHeadProblem and FusedHeadResult and the
// workspace are device memory. They must stay valid, and the caller must not write to them, until
// the enqueued work is done. The structs themselves are only read during the call.
//
// The rows are cut into chunks that fit the workspace, and each chunk takes four passes:
//   1. The logits of a few of its rows: hidden lm_head^T by cuBLASLt, with float32 accumulators and
//      float32 results.
//   2. One read of those logits. The support is removed from the row. The rest gives the
//      log-sum-exp of the tail and the sum for the entropy, and E_nv = exp((l_nv - r_n) / t), where
//      l_n = t z_n, is written in the dtype of hidden. The reference r_n is the largest l_nv so
//      far. When one exceeds it by more than kMaxOverReference, the row's sums and its E are
//      rescaled, so that nothing overflows and a tail of any size is exact.
//   3. The objective, with one thread per row, in float64 on O(k) numbers. It gives the loss, the
//      metrics, a scale s_n of the row and the k + 1 entries of E that are not a multiple of p(v).
//   4. d_hidden = diag(s) (E lm_head) and d_lm_head += E^T (diag(s) hidden) by cuBLASLt on E, with
//      float32 accumulators.
// Objectives without a dense gradient (kNoDenseGradient) need neither E nor pass 4: d_hidden is the
// sum of k + 1 rows of lm_head, and d_lm_head is a sum of rows of hidden in the order of their ids.
//
// Cost: 6 N H V floating-point operations. Each element of [N, V] is written and read once as
// float32 and written once and read twice as an element of E. lm_head is read once per run of
// logits_rows rows (FusedHeadPlan) and once per chunk; d_lm_head is read and written once per
// chunk.
//
// Results repeat bit for bit: the same call with the same workspace size gives the same bits, and
// no floating-point atomics are used.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"
#include "taopd/head/head_inputs.h"
#include "taopd/head/student_targets.h"
#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

// hidden and lm_head are HeadInputs; d_hidden has their dtype.
struct FusedHeadProblem : HeadInputs {
  // The targets that the rows are compared with; 0 <= k <= V.
  StudentTargets targets;

  ObjectiveTerms objective;  // ProblemOf(objective) is empty
  // Whether to fill in kTopKOverlap and kTopKOverlapAdvantage. Needs k <= kMaxTopKMetrics, or an
  // objective over the whole vocabulary.
  bool top_k_metrics = false;
};

// Bits of FusedHeadResult::errors.
enum HeadError : int32_t {
  kHeadSupportIdOutOfRange = 1,
  kHeadSampledIdOutOfRange = 2,
  kHeadDuplicateSupportId = 4,
  kHeadIdAfterPadding = 8,
  // The support of a row is empty, and the objective needs one.
  kHeadEmptySupport = 16,
  // The support of a row is not the whole vocabulary, and the objective needs all of it.
  kHeadIncompleteSupport = 32,
};

struct FusedHeadResult {
  // [N], not multiplied by the rows' weights. Always needed.
  float* loss_N = nullptr;
  // [N, M], contiguous; the columns of taopd/objective/row_metrics.h. Always needed.
  float* metrics_NM = nullptr;
  // [N, H] in the problem's dtype, contiguous. Null: not computed.
  void* d_hidden_NH = nullptr;
  // [V, H] float32, contiguous. The gradient is added to its contents. Null: not computed.
  float* d_lm_head_VH = nullptr;
  // One word into which the HeadError bits of all rows are or-ed. Always needed; the caller sets it
  // to 0 before the call and reads it when the work is done. The loss and gradient of a row with an
  // error are unspecified, and so is d_lm_head then. Wrong ids never touch memory outside of the
  // arrays.
  int32_t* errors = nullptr;
};

inline constexpr int32_t kMaxTopKMetrics = 1024;
inline constexpr float kMaxOverReference = 20.0f;  // nats

// The way in which a call is cut into chunks.
struct FusedHeadPlan {
  // Rows of E. d_lm_head is read and written once per chunk, so fewer and larger chunks are faster.
  int64_t chunk_rows = 0;
  // Rows of float32 logits, at most chunk_rows.
  int64_t logits_rows = 0;
  // The bytes of the workspace that this plan uses.
  int64_t bytes = 0;
};

// Returns a plan that fits workspace_bytes and causes little memory traffic. If not even one row
// fits, chunk_rows is 0 and bytes is the size that one row needs. Reads only the sizes, dtype,
// objective, k and top_k_metrics of the problem, no pointer. Runs on the CPU; any thread may call
// it.
FusedHeadPlan PlanFusedHead(const FusedHeadProblem& problem, int64_t workspace_bytes);

// Enqueues the computation on context.stream and returns without waiting. Needs context.cublaslt
// and a workspace of at least PlanFusedHead(problem, 0).bytes bytes. Returns an empty string, or
// the first problem with the argument's name, its value and its limit; taopd/base/device.h says
// what was enqueued in that case. Errors in ids are found only on the device
// (FusedHeadResult::errors). Does nothing if num_rows is 0. Any thread may call it.
std::string FusedHead(const FusedHeadProblem& problem, const FusedHeadResult& result,
                      const DeviceContext& context);

}  // namespace taopd
