// Attention of a step in which long chunks are computed by LibTorch and the other rows by the
// kernels, against the kernels alone and against float64: on a GPU (tests/gpu), and on the CPU
// through the emulated run-time.
#include "kernels/torch/attention/cuda_paged_attention.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/kernels/torch/expect_throws.h"
#include "tests/kernels/torch/test_device.h"

namespace taopd::testing {
namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2;
// Sums run in another order than the oracle's. bfloat16 results are rounded, and those of the two
// calls of a chunk once more.
constexpr double kFloatTolerance = 1e-5, kBfloat16Tolerance = 0.02;

double ToleranceOf(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatTolerance : kBfloat16Tolerance;
}

// Heads as they are: neither normalized nor rotated.
HeadRotation NoRotation(int64_t num_rows, int64_t head_size, const at::TensorOptions& options) {
  HeadRotation rotation;
  rotation.cos_T1D = at::ones({num_rows, 1, head_size}, options);
  rotation.sin_T1D = at::zeros({num_rows, 1, head_size}, options);
  return rotation;
}

// A decoding sequence, a long chunk after a prefix, a short chunk, and a long first chunk.
class CudaPagedAttentionTest
    : public ::testing::TestWithParam<std::tuple<at::ScalarType, int64_t>> {
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
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape).to(options_); };
    q_TND_ = random({num_rows_, kHeads, head_size_});
    k_TKD_ = random({num_rows_, kKvHeads, head_size_});
    v_TKD_ = random({num_rows_, kKvHeads, head_size_});
    pages_.keys_BKPD = random({num_blocks_, kKvHeads, kBlockTokens, head_size_});
    pages_.values_BKPD = random({num_blocks_, kKvHeads, kBlockTokens, head_size_});
  }

  at::Tensor Run(bool custom_long_chunks, int64_t sliding_window, const DeviceKernels& kernels) {
    const at::NoGradGuard no_grad;
    const CudaPagedAttention attention(sequences_, kHeads, kKvHeads, head_size_, TestDevice(),
                                       kernels, custom_long_chunks);
    return attention
        .Run(q_TND_, k_TKD_, v_TKD_, NoRotation(num_rows_, head_size_, options_), pages_, scale_,
             sliding_window)
        .cpu();
  }

  // The attention of a sequence's rows in float64 from the pages, [rows, N * D].
  at::Tensor Exact(const PagedSequence& sequence, int64_t sliding_window) const {
    const int64_t length = sequence.past_len + sequence.num_rows;
    const auto all = [&](const at::Tensor& stored_BKPD) {
      std::vector<at::Tensor> blocks;
      for (int64_t b = 0; b < KvBlocksFor(length); ++b) {
        blocks.push_back(stored_BKPD[sequence.block_table[b]].cpu());
      }
      return at::cat(blocks, 1)
          .narrow(1, 0, length)
          .to(at::kDouble)
          .repeat_interleave(kHeads / kKvHeads, 0);
    };
    const at::Tensor q_NQD = q_TND_.narrow(0, sequence.first_row, sequence.num_rows)
                                 .transpose(0, 1)
                                 .to(at::kCPU, at::kDouble);
    const at::Tensor positions_Q1 = at::arange(sequence.past_len, length).unsqueeze(1);
    const at::Tensor keys_1L = at::arange(length).unsqueeze(0);
    at::Tensor hidden_QL = keys_1L > positions_Q1;
    if (sliding_window > 0) hidden_QL = hidden_QL | (keys_1L <= positions_Q1 - sliding_window);
    const at::Tensor scores_NQL =
        (q_NQD.matmul(all(pages_.keys_BKPD).transpose(1, 2)) * scale_)
            .masked_fill(hidden_QL, -std::numeric_limits<double>::infinity());
    return scores_NQL.softmax(2)
        .matmul(all(pages_.values_BKPD))
        .transpose(0, 1)
        .reshape({sequence.num_rows, kHeads * head_size_});
  }

  const at::ScalarType dtype_ = std::get<0>(GetParam());
  const int64_t head_size_ = std::get<1>(GetParam());
  const double scale_ = 1 / std::sqrt(head_size_);
  const at::TensorOptions options_ = at::TensorOptions().dtype(dtype_).device(TestDevice());
  std::vector<PagedSequence> sequences_;
  std::vector<int32_t> tables_;
  int64_t num_rows_ = 0, num_blocks_ = 0;
  at::Tensor q_TND_, k_TKD_, v_TKD_;
  PlainPageTensors pages_;
};

TEST_P(CudaPagedAttentionTest, LongChunksAreTheOnesWithManyPairs) {
  const std::vector<bool> is_long = {false, true, false, true};
  for (size_t s = 0; s < sequences_.size(); ++s) {
    EXPECT_EQ(CudaPagedAttention::IsLongChunk(sequences_[s]), is_long[s]) << s;
  }
  EXPECT_FALSE(CudaPagedAttention::IsLongChunk({0, 1, 1 << 20, nullptr}));  // decoding
}

TEST_P(CudaPagedAttentionTest, PositionsCountFromTheStartOfEachSequence) {
  const CudaPagedAttention attention(sequences_, kHeads, kKvHeads, head_size_, TestDevice());
  const at::Tensor expected_T =
      at::cat({at::arange(90, 91), at::arange(250, 510), at::arange(40, 47), at::arange(0, 363)});
  EXPECT_TRUE(at::equal(attention.PositionsT().cpu(), expected_T));
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
      EXPECT_LE(error.item<double>(), ToleranceOf(dtype_))
          << sequence.num_rows << " rows, window " << sliding_window;
    }
  }
}

// The kernel gets no tiles of long chunks, and the other rows have the bits that it gives them.
TEST_P(CudaPagedAttentionTest, OnlyLongChunksAreNotTheKernels) {
  static int64_t num_rows;  // that the kernel gets
  DeviceKernels kernels = LinkedKernels();
  kernels.paged_attention = [](const PlainPagedAttention& p, const DeviceContext& c) {
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(TestDevice());
    const at::Tensor tiles = at::from_blob(const_cast<PagedTile*>(p.tiles_I),
                                           p.counts.num_tiles * int64_t{sizeof(PagedTile)}, bytes)
                                 .cpu();
    const auto* const tiles_I = static_cast<const PagedTile*>(tiles.const_data_ptr());
    for (int64_t i = 0; i < p.counts.num_tiles; ++i) num_rows += tiles_I[i].num_rows;
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

TEST_P(CudaPagedAttentionTest, WrongTensorsAreNamed) {
  const std::vector<int32_t> table = {0};
  const CudaPagedAttention attention({{0, 1, 0, table.data()}}, 2, 1, 8, TestDevice());
  const at::Tensor pages = at::zeros({1, 1, kBlockTokens, 8}, options_);
  const at::Tensor kv = at::zeros({1, 1, 8}, options_);
  const auto run = [&](const at::Tensor& q, const HeadRotation& rotation) {
    attention.Run(q, kv, kv, rotation, {pages, pages}, 1, 0);
  };
  const HeadRotation none = NoRotation(1, 8, options_);
  run(at::zeros({1, 2, 8}, options_), none);
  ExpectThrows("q has shape [1, 3, 8]", [&] { run(at::zeros({1, 3, 8}, options_), none); });
  ExpectThrows("q is Half", [&] { run(at::zeros({1, 2, 8}, options_.dtype(at::kHalf)), none); });
  ExpectThrows("cos is", [&] { run(at::zeros({1, 2, 8}, options_), NoRotation(2, 8, options_)); });
}

INSTANTIATE_TEST_SUITE_P(TypesAndHeadSizes, CudaPagedAttentionTest,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16),
                                            ::testing::Values(16, 128)),
                         [](const auto& parameter) {
                           const std::string dtype = c10::toString(std::get<0>(parameter.param));
                           return dtype + "_" + std::to_string(std::get<1>(parameter.param));
                         });

}  // namespace
}  // namespace taopd::testing
