// Attention of a step in which long chunks are computed by LibTorch and the other rows by the
// kernels of the emulated run-time, against the kernels alone and against float64.
#include "kernels/torch/attention/cuda_paged_attention.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace taopd::testing {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadSize = 16;
constexpr double kScale = 0.25;
// Sums run in another order than the oracle's. bfloat16 results are rounded, and those of the two
// calls of a chunk once more.
constexpr double kFloatTolerance = 1e-5, kBfloat16Tolerance = 0.02;

double ToleranceOf(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatTolerance : kBfloat16Tolerance;
}

// A decoding sequence, a long chunk after a prefix, a short chunk, and a long first chunk.
class CudaPagedAttentionTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  CudaPagedAttentionTest() {
    at::manual_seed(3);
    for (const auto& [num_rows, past_len] :
         {std::pair<int64_t, int64_t>{1, 90}, {260, 250}, {7, 40}, {363, 0}}) {
      sequences_.push_back({num_rows_, num_rows, past_len, nullptr});
      num_rows_ += num_rows;
      num_blocks_ += KvBlocksFor(past_len + num_rows);
    }
    int32_t next = static_cast<int32_t>(num_blocks_);
    tables_.reserve(static_cast<size_t>(num_blocks_));
    for (PagedSequence& sequence : sequences_) {
      sequence.block_table = tables_.data() + tables_.size();
      for (int64_t b = 0; b < KvBlocksFor(sequence.past_len + sequence.num_rows); ++b) {
        tables_.push_back(--next);
      }
    }
    const auto random = [](at::IntArrayRef shape) { return at::randn(shape).to(GetParam()); };
    q_TND_ = random({num_rows_, kHeads, kHeadSize});
    k_TKD_ = random({num_rows_, kKvHeads, kHeadSize});
    v_TKD_ = random({num_rows_, kKvHeads, kHeadSize});
    pages_.keys_BKPD = random({num_blocks_, kKvHeads, kBlockTokens, kHeadSize});
    pages_.values_BKPD = random({num_blocks_, kKvHeads, kBlockTokens, kHeadSize});
    rotation_.cos_T1D = at::ones({num_rows_, 1, kHeadSize}).to(GetParam());
    rotation_.sin_T1D = at::zeros({num_rows_, 1, kHeadSize}).to(GetParam());
  }

  at::Tensor Run(bool custom_long_chunks, int64_t sliding_window, const DeviceKernels& kernels) {
    const at::NoGradGuard no_grad;
    const CudaPagedAttention attention(sequences_, kHeads, kKvHeads, kHeadSize, at::kCPU, kernels,
                                       custom_long_chunks);
    return attention.Run(q_TND_, k_TKD_, v_TKD_, rotation_, pages_, kScale, sliding_window);
  }

  // The attention of a sequence's rows in float64 from the pages, [rows, N * D].
  at::Tensor Exact(const PagedSequence& sequence, int64_t sliding_window) const {
    const int64_t length = sequence.past_len + sequence.num_rows;
    const auto all = [&](const at::Tensor& stored_BKPD) {
      std::vector<at::Tensor> blocks;
      for (int64_t b = 0; b < KvBlocksFor(length); ++b) {
        blocks.push_back(stored_BKPD[sequence.block_table[b]]);
      }
      return at::cat(blocks, 1)
          .narrow(1, 0, length)
          .to(at::kDouble)
          .repeat_interleave(kHeads / kKvHeads, 0);
    };
    const at::Tensor q_NQD =
        q_TND_.narrow(0, sequence.first_row, sequence.num_rows).transpose(0, 1).to(at::kDouble);
    const at::Tensor positions_Q1 = at::arange(sequence.past_len, length).unsqueeze(1);
    const at::Tensor keys_1L = at::arange(length).unsqueeze(0);
    at::Tensor hidden_QL = keys_1L > positions_Q1;
    if (sliding_window > 0) hidden_QL = hidden_QL | (keys_1L <= positions_Q1 - sliding_window);
    const at::Tensor scores_NQL =
        (q_NQD.matmul(all(pages_.keys_BKPD).transpose(1, 2)) * kScale)
            .masked_fill(hidden_QL, -std::numeric_limits<double>::infinity());
    return scores_NQL.softmax(2)
        .matmul(all(pages_.values_BKPD))
        .transpose(0, 1)
        .reshape({sequence.num_rows, kHeads * kHeadSize});
  }

  std::vector<PagedSequence> sequences_;
  std::vector<int32_t> tables_;
  int64_t num_rows_ = 0, num_blocks_ = 0;
  at::Tensor q_TND_, k_TKD_, v_TKD_;
  PlainPageTensors pages_;
  HeadRotation rotation_;
};

TEST_P(CudaPagedAttentionTest, LongChunksAreTheOnesWithManyPairs) {
  const std::vector<bool> is_long = {false, true, false, true};
  for (size_t s = 0; s < sequences_.size(); ++s) {
    EXPECT_EQ(CudaPagedAttention::IsLongChunk(sequences_[s]), is_long[s]) << s;
  }
  EXPECT_FALSE(CudaPagedAttention::IsLongChunk({0, 1, 1 << 20, nullptr}));  // decoding
}

TEST_P(CudaPagedAttentionTest, PositionsCountFromTheStartOfEachSequence) {
  const CudaPagedAttention attention(sequences_, kHeads, kKvHeads, kHeadSize, at::kCPU);
  const at::Tensor expected_T =
      at::cat({at::arange(90, 91), at::arange(250, 510), at::arange(40, 47), at::arange(0, 363)});
  EXPECT_TRUE(at::equal(attention.PositionsT(), expected_T));
}

TEST_P(CudaPagedAttentionTest, ChunksOfLibTorchAndRowsOfTheKernelEqualFloat64) {
  for (const int64_t sliding_window : {0, 100}) {
    const at::Tensor out_TC = Run(false, sliding_window, LinkedKernels());
    for (const PagedSequence& sequence : sequences_) {
      const at::Tensor error =
          (out_TC.narrow(0, sequence.first_row, sequence.num_rows).to(at::kDouble) -
           Exact(sequence, sliding_window))
              .abs()
              .max();
      EXPECT_LE(error.item<double>(), ToleranceOf(GetParam()))
          << sequence.num_rows << " rows, window " << sliding_window;
    }
  }
}

// The kernel gets no tiles of long chunks, and the other rows have the bits that it gives them.
TEST_P(CudaPagedAttentionTest, OnlyLongChunksAreNotTheKernels) {
  static int64_t num_rows;  // that the kernel gets
  DeviceKernels kernels = LinkedKernels();
  kernels.paged_attention = [](const PlainPagedAttention& p, const DeviceContext& c) {
    for (int64_t i = 0; i < p.counts.num_tiles; ++i) num_rows += p.tiles_I[i].num_rows;
    return PagedAttentionCuda(p, c);
  };
  num_rows = 0;
  const at::Tensor mixed_TC = Run(false, 0, kernels);
  EXPECT_EQ(num_rows, 1 + 7);
  num_rows = 0;
  const at::Tensor by_kernel_TC = Run(true, 0, kernels);
  EXPECT_EQ(num_rows, 1 + 260 + 7 + 363);
  for (const size_t s : {0, 2}) {
    const PagedSequence& sequence = sequences_[s];
    EXPECT_TRUE(at::equal(mixed_TC.narrow(0, sequence.first_row, sequence.num_rows),
                          by_kernel_TC.narrow(0, sequence.first_row, sequence.num_rows)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaPagedAttentionTest,
                         ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& parameter) { return c10::toString(parameter.param); });

}  // namespace
}  // namespace taopd::testing
