// CudaPagedAttention on a GPU: the tensors' side of the kernels of
// taopd/attention/paged_attention_cuda.h, against ATen in float64.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/torch/attention/cuda_paged_attention.h"

namespace taopd {
namespace {

// Relative to the largest element: sums in float32, and one rounding of a bfloat16 result (2^-9).
double ToleranceOf(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-5 : 0.004; }

constexpr int64_t kNumHeads = 6, kNumKvHeads = 2, kHeadSize = 128, kMaxBlocks = 20, kWindow = 300;
constexpr double kScale = 0.09;

// Heads as they are: neither normalized nor rotated.
HeadRotation NoRotation(int64_t num_rows, int64_t head_size, const at::TensorOptions& options) {
  HeadRotation rotation;
  rotation.cos_T1D = at::ones({num_rows, 1, head_size}, options);
  rotation.sin_T1D = at::zeros({num_rows, 1, head_size}, options);
  return rotation;
}

class GpuAttention : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    at::manual_seed(1);
  }
};

// Sequences with their queries, keys and values in one tensor of each, as a fused product gives
// them, and pages that start as NaN.
class Problem {
 public:
  Problem(const std::vector<int64_t>& lengths, at::ScalarType dtype, uint64_t seed)
      : tables_(lengths.size() * kMaxBlocks), past_(lengths.size()) {
    const auto options = at::TensorOptions().dtype(dtype).device(at::kCUDA);
    at::manual_seed(1);
    for (int64_t length : lengths) {
      qkv_.push_back(at::randn({length, kNumHeads + 2 * kNumKvHeads, kHeadSize}, at::kCPU)
                         .to(options.device(), dtype));
      outputs_.emplace_back();
    }
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i] = static_cast<int32_t>(i);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937_64(seed));
    pages_.keys_BKPD =
        at::full({static_cast<int64_t>(tables_.size()), kNumKvHeads, kBlockTokens, kHeadSize},
                 std::nan(""), options);
    pages_.values_BKPD = pages_.keys_BKPD.clone();
  }

  // The next num_rows[s] rows of each sequence in one batch.
  void Step(const std::vector<int64_t>& num_rows) {
    std::vector<PagedSequence> batch;
    std::vector<at::Tensor> parts;
    int64_t first_row = 0;
    for (size_t s = 0; s < num_rows.size(); ++s) {
      batch.push_back({first_row, num_rows[s], past_[s], &tables_[s * kMaxBlocks]});
      parts.push_back(qkv_[s].narrow(0, past_[s], num_rows[s]));
      first_row += num_rows[s];
    }
    const at::Tensor rows = at::cat(parts);
    const CudaPagedAttention attention(batch, kNumHeads, kNumKvHeads, kHeadSize, rows.device());
    const at::Tensor out =
        attention.Run(rows.narrow(1, 0, kNumHeads), rows.narrow(1, kNumHeads, kNumKvHeads),
                      rows.narrow(1, kNumHeads + kNumKvHeads, kNumKvHeads),
                      NoRotation(rows.size(0), kHeadSize, rows.options()), pages_, kScale, kWindow);
    for (size_t s = 0; s < num_rows.size(); ++s) {
      outputs_[s].push_back(out.narrow(0, batch[s].first_row, num_rows[s]));
      past_[s] += num_rows[s];
    }
  }

  at::Tensor Output(size_t s) const { return at::cat(outputs_[s]).cpu(); }
  at::Tensor Expected(size_t s) const {
    const at::Tensor x_HTD = qkv_[s].to(at::kCPU, at::kDouble).transpose(0, 1);
    const int64_t length = x_HTD.size(1), group = kNumHeads / kNumKvHeads;
    const auto shared = [&](int64_t first) {
      return x_HTD.narrow(0, first, kNumKvHeads).repeat_interleave(group, 0);
    };
    const at::Tensor age = at::arange(length).unsqueeze(1) - at::arange(length);
    const at::Tensor hidden = age.lt(0).logical_or(age.ge(kWindow));
    const at::Tensor scores =
        x_HTD.narrow(0, 0, kNumHeads).matmul(shared(kNumHeads).transpose(1, 2)) * kScale;
    return scores.masked_fill(hidden, -std::numeric_limits<double>::infinity())
        .softmax(-1)
        .matmul(shared(kNumHeads + kNumKvHeads))
        .transpose(0, 1)
        .reshape({length, -1});
  }

 private:
  std::vector<at::Tensor> qkv_;
  std::vector<int32_t> tables_;
  PlainPageTensors pages_;
  std::vector<int64_t> past_;
  std::vector<std::vector<at::Tensor>> outputs_;
};

TEST_P(GpuAttention, MatchesAtenAndDoesNotDependOnChunks) {
  const std::vector<int64_t> lengths = {600, 1, 90};
  Problem whole(lengths, GetParam(), 1), chunks(lengths, GetParam(), 2);
  whole.Step(lengths);
  chunks.Step({257, 0, 3});
  chunks.Step({1, 1, 80});
  for (int i = 0; i < 7; ++i) chunks.Step({1, 0, 1});
  chunks.Step({335, 0, 0});
  for (size_t s = 0; s < lengths.size(); ++s) {
    const at::Tensor expected = whole.Expected(s), ours = whole.Output(s);
    const double error = (ours.to(at::kDouble) - expected).abs().max().item<double>();
    EXPECT_LE(error, ToleranceOf(GetParam()) * expected.abs().max().item<double>()) << s;
    EXPECT_TRUE(at::equal(ours, chunks.Output(s))) << s;
  }
}

TEST_P(GpuAttention, WrongTensorsAreNamed) {
  const auto options = at::TensorOptions().dtype(GetParam()).device(at::kCUDA);
  const std::vector<int32_t> table = {0};
  const CudaPagedAttention attention({{0, 1, 0, table.data()}}, 2, 1, 8, at::kCUDA);
  const at::Tensor pages = at::zeros({1, 1, kBlockTokens, 8}, options);
  const at::Tensor kv = at::zeros({1, 1, 8}, options);
  const auto run = [&](const at::Tensor& q, const HeadRotation& rotation) {
    attention.Run(q, kv, kv, rotation, {pages, pages}, 1, 0);
  };
  const HeadRotation none = NoRotation(1, 8, options);
  EXPECT_NO_THROW(run(at::zeros({1, 2, 8}, options), none));
  EXPECT_THROW(run(at::zeros({1, 3, 8}, options), none), c10::Error);
  EXPECT_THROW(run(at::zeros({1, 2, 8}, options.dtype(at::kHalf)), none), c10::Error);
  EXPECT_THROW(run(at::zeros({1, 2, 8}, options), NoRotation(2, 8, options)), c10::Error);
}

INSTANTIATE_TEST_SUITE_P(Types, GpuAttention, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace taopd
