// A chunk of rows of the student's head on the CPU, computed as a stream of blocks of the
// vocabulary. A block of logits is processed while it is in the cache, and only the part that the
// gradients need is kept, in the dtype of the weights. float32 logits of a whole row never exist.
//
// Call for each chunk, in this order:
//   1. Start, with the targets of the rows.
//   2. AddBlock once for every block, in any order. It removes the support from the block. The
//      rest gives its maximum m, its sums, and e = exp(z / temperature) 2^-x, where x is the least
//      integer with m / temperature <= x log 2.
//   3. FinishRows once for every row. It computes the tail and the entropy from the blocks' sums,
//      evaluates the objective, and overwrites the entries of e, at most k + 1, whose gradient is
//      not a multiple of p(v).
//   4. gradient() or entries().
//
// The gradient is d (sum_n w_n loss_n) / d z_nv = row_scale_n * factor_bn * e_vn. The factors are
// powers of two, so a bfloat16 e is rounded once. Each block has its own reference: nothing
// overflows, a tail of any size is exact, and no result depends on the order of the blocks.
//
// Several threads may be inside AddBlock at the same time with different blocks, and later inside
// FinishRows with different rows, each with its own scratch. All other calls must be alone.
//
// Shapes: C rows of the chunk; V vocabulary, in B blocks; k support; E = k + 1 entries per row.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/head/logit_gradient.h"
#include "kernels/cpu/head/top_k_overlap.h"
#include "kernels/cpu/math/row_math.h"
#include "taopd/base/data_type.h"
#include "taopd/head/row_support.h"
#include "taopd/head/student_row.h"
#include "taopd/head/student_targets.h"
#include "taopd/objective/objective.h"

namespace taopd::cpu {

struct StudentChunkOptions {
  ObjectiveTerms objective;  // ProblemOf(objective) is empty
  double temperature = 1;    // > 0
  // Whether to fill in kTopKOverlap and kTopKOverlapAdvantage.
  bool top_k_metrics = false;
  int64_t vocab_size = 0;               // V >= 1
  int64_t block_size = 0;               // the size of all blocks except the last, at least 2
  DataType dtype = DataType::kFloat32;  // the type of the exps
  // Whether the caller multiplies matrices by gradient(). If not, it uses only entries(), which is
  // the whole gradient of objectives without a dense part.
  bool products = true;
};

// Memory that is reused from block to block and from row to row. Not thread-safe: give each thread
// its own.
struct StudentChunkScratch {
  std::vector<double> row_work;  // of FinishStudentRow
  std::vector<float> max, shift, offset, exponent, sum, sum_x;
  std::vector<int32_t> order;
  // For SupportTopK.
  std::vector<float> support_logits, ordered_logits;
  std::vector<int32_t> ids, sizes, ordered_ids, in_top_k;
  std::vector<uint8_t> row_in_top_k;  // of StudentRowInput
  LargestLogits::Scratch largest;
};

class StudentChunk {
 public:
  // Returns the bytes that a chunk holds for each of its rows, with or without the exps.
  static int64_t BytesPerRow(const StudentChunkOptions& options, int32_t k, bool with_exps = true);

  // `exps` is the caller's memory for [V, C] elements of options.dtype, where C is the size of the
  // largest chunk. It must outlive this object. If it is null, the exps are not kept, and MakeExps
  // computes them again.
  StudentChunk(const StudentChunkOptions& options, void* exps);

  // Begins a chunk. The arrays of the targets must not change until the chunk is done. If the
  // result is not kOk, the only valid next call is Start.
  RowStatus Start(const StudentTargets& targets, int64_t num_rows);

  // Adds the logits of one block: the logit of the block's token v and row n is
  // logits[v * stride + n]. Each row of the block must be readable up to the next multiple of 16
  // columns. The contents are overwritten.
  void AddBlock(int64_t block, float* logits, int64_t stride, StudentChunkScratch* scratch);

  // Finishes rows [begin, end), fastest in multiples of kRankedRows. Writes one number per row to
  // loss and kNumHeadMetrics numbers per row to metrics.
  void FinishRows(int64_t begin, int64_t end, StudentChunkScratch* scratch, float* loss,
                  float* metrics);

  // Computes the e of one block's tokens again, [tokens, C] of options.dtype, with the bits that
  // the chunk would have kept. Takes the same logits as AddBlock. Call it after FinishRows, from
  // any thread.
  void MakeExps(int64_t block, float* logits, int64_t stride, StudentChunkScratch* scratch,
                void* exps) const;

  // The gradient of the chunk's logits, valid until the next Start. gradient() needs
  // options.products; its exps are null if they were not kept.
  LogitGradient gradient() const;
  LogitEntries entries() const;

 private:
  // A logit of the chunk that is used individually.
  struct NamedLogit {
    int32_t row, id;
    int32_t index;  // in the support; the sampled token has -1
  };

  // Whether the logits of all tokens are kept in order to count the ranks of a support in them. In
  // a larger vocabulary, the largest logits are collected instead.
  bool CountsRanks() const;
  void FindTopK(int64_t begin, int64_t num, StudentChunkScratch* scratch);
  void SortByBlock();
  // Returns id / block_size. A division would take several times as long as this multiplication,
  // which is exact (Lemire, Kaser and Kurz, "Faster remainder by direct computation", 2019).
  int64_t BlockOf(int32_t id) const {
    __extension__ using Product = unsigned __int128;
    return static_cast<int64_t>(Product{block_reciprocal_} * static_cast<uint32_t>(id) >> 64);
  }
  int64_t TokensOf(int64_t block) const;
  void* ExpsOf(int64_t block) const;
  void TakeNamedLogits(int64_t block, float* logits, int64_t stride);
  void KeepLogits(int64_t block, const float* logits, int64_t stride);
  void SumBlock(int64_t block, const float* logits, int64_t stride, StudentChunkScratch* scratch,
                float* exponents, float* sums, float* sums_x, void* exps) const;
  void OfferLargest(int64_t block, const float* logits, int64_t stride,
                    StudentChunkScratch* scratch);
  void JoinBlocks(int64_t begin, int64_t num, ComplementSums* rest);
  // `place` is the row's place among those of FindTopK.
  void FinishRow(int64_t row, int64_t place, const ComplementSums& rest,
                 StudentChunkScratch* scratch, float* loss, float* metrics);
  void WriteEntry(int64_t row, int32_t id, float value, void* block_exps) const;

  const StudentChunkOptions options_;
  const float scale_;  // 1 / temperature
  const int64_t num_blocks_;
  const uint64_t block_reciprocal_;  // 2^64 / block_size, rounded up
  const bool dense_;                 // whether exps are written
  void* const exps_;
  StudentTargets targets_;
  int64_t num_rows_ = 0;
  std::vector<int32_t> size_C_, entry_ids_CE_;
  std::vector<uint64_t> seen_ids_;  // for HasDuplicate
  // The sampled tokens and supports by block: block b has those from first_B_[b] to
  // first_B_[b + 1].
  std::vector<int64_t> first_B_;
  std::vector<NamedLogit> named_;
  std::vector<float> support_logits_Ck_, sampled_logit_C_, row_scale_C_, entry_values_CE_;
  // For each block and row. AddBlock writes the exponent x to factor_BC_ (see the top of this
  // file), and the sums in units of 2^x. FinishRows replaces x by the factor.
  std::vector<float> factor_BC_, sum_BC_, sum_x_BC_;
  std::vector<float> logits_VC_;  // rows of whole vectors; empty unless CountsRanks()
  int64_t logits_stride_ = 0;
  std::unique_ptr<LargestLogits[]> largest_C_;
  int64_t num_largest_ = 0;
};

}  // namespace taopd::cpu
