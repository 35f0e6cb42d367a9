// A chunk of rows of the student's head on the CPU as a stream of blocks of the vocabulary: a block
// of logits goes in while it is in the cache, and only what the gradients need of it stays, in the
// dtype of the weights. float32 logits of a whole row never exist.
//
//   1. Start            the support and the sampled tokens of the rows
//   2. TakeBlock        every block once, in any order: the support leaves the block; what is left
//                       gives its maximum m, its sums and e = exp(z / temperature) 2^-x, where x is
//                       the least integer with m / temperature <= x log 2
//   3. FinishRow        every row once: tail and entropy from the blocks' sums, the objective, loss
//                       and metrics; the up to k + 1 entries of e that are not a p(v) are
//                       overwritten
//
// after which d (sum_n w_n loss_n) / d z_nv = row_scale_n * factor_bn * e_vn with factors that are
// powers of two: a bfloat16 e is rounded once. Each block has its own reference, so that nothing
// overflows, a tail of any size is exact, and no result depends on the order of the blocks.
//
// Raw pointers; threads are the caller's. Shapes: C rows of the chunk, V vocabulary, B blocks of
// it, k support.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/cpu/head/row_support.h"
#include "kernels/cpu/head/top_k_overlap.h"
#include "kernels/cpu/math/row_math.h"
#include "taopd/base/device.h"
#include "taopd/head/student_row.h"
#include "taopd/objective/objective.h"

namespace taopd::cpu {

// What belongs to the rows of a chunk, here N; contiguous, null where the objective does not need
// it. Named as in FusedHeadProblem (taopd/head/fused_head.h).
struct StudentTargets {
  // Distinct within a row, each in [0, V); -1 at the end pads a support that is smaller than k.
  const int32_t* support_ids_Nk = nullptr;
  const float* teacher_log_probs_Nk = nullptr;  // those of padding are not read
  int32_t k = 0;
  const float* teacher_log_tail_N = nullptr;  // NaN, or null: made from the support's mass
  const int32_t* sampled_ids_N = nullptr;     // in [0, V); always needed
  const float* teacher_sampled_log_probs_N = nullptr;
  const float* teacher_entropy_N = nullptr;
  const float* behavior_log_probs_N = nullptr;  // null: on-policy
  const float* row_weights_N = nullptr;         // always needed
};

struct StudentChunkOptions {
  ObjectiveTerms objective;  // ProblemOf(objective) is empty
  double temperature = 1;    // > 0
  bool top_k_metrics = false;
  int64_t vocabulary_size = 0;  // V >= 1
  int64_t block_size = 0;       // of all blocks but the last
  DataType dtype = DataType::kFloat32;
  // Whether the caller multiplies matrices with the gradient. Otherwise it takes the entries alone,
  // which is right for objectives without a dense gradient.
  bool products = true;
};

// Memory that rows or blocks share one after the other; one per thread.
struct StudentChunkScratch {
  std::vector<double> log_p, log_q, gradient, term_gradient;
  std::vector<float> max, shift, offset;
  std::vector<int32_t> order;
  std::vector<uint8_t> in_top_k;
};

class StudentChunk {
 public:
  // What a chunk holds for each of its rows, the exps included.
  static int64_t BytesPerRow(const StudentChunkOptions& options, int32_t k);

  // exps: memory for [V, C] of the largest chunk in the dtype, used until the chunk is done; not
  // needed without products.
  StudentChunk(const StudentChunkOptions& options, void* exps);

  // The targets are read until the chunk is done. Not kOk: no other call may follow but Start.
  RowStatus Start(const StudentTargets& targets, int64_t num_rows);
  // logits[v][n] at logits[v * stride + n] for the v of the block, readable up to a multiple of 16
  // columns; spoilt after.
  void TakeBlock(int64_t block, float* logits, int64_t stride, StudentChunkScratch* scratch);
  // loss: one number; metrics: kNumHeadMetrics.
  void FinishRow(int64_t row, StudentChunkScratch* scratch, float* loss, float* metrics);

  LogitGradient gradient() const;
  LogitEntries entries() const;

 private:
  ComplementSums JoinBlocks(int64_t row);
  void WriteEntry(int64_t row, int32_t id, float value);

  const StudentChunkOptions options_;
  const float scale_;  // 1 / temperature
  const int64_t num_blocks_;
  const bool dense_;  // exps are written
  void* const exps_;
  StudentTargets targets_;
  int64_t num_rows_ = 0;
  std::vector<int32_t> size_C_, order_Ck_, entry_ids_Ce_;
  std::vector<float> taken_Ck_, sampled_logit_C_, row_scale_C_, entry_values_Ce_;
  // Of a block and row: x as above, later the factor; sums in units of 2^x.
  std::vector<float> factor_BC_, sum_BC_, sum_x_BC_;
  std::unique_ptr<LargestLogits[]> largest_C_;
  int64_t num_largest_ = 0;
};

}  // namespace taopd::cpu
