#include "trainer/dist/sharded_optimizer.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace taopd {
namespace {

// The elements of a piece, in its parameter and in a bucket's buffer.
at::Tensor InParameter(const FlatGradients& gradients, const ParameterPiece& piece) {
  return gradients.parameters()[piece.position].second.view({-1}).narrow(0, piece.offset,
                                                                         piece.size);
}

at::Tensor InBuffer(const at::Tensor& buffer, int64_t begin, const ParameterPiece& piece) {
  return buffer.narrow(0, piece.flat_begin - begin, piece.size);
}

// Whether blocks of kFlatAlignment elements hold elements of one parameter each, so that their sums
// can be compared across layouts.
constexpr int64_t kNormBlock = kFlatAlignment;
// Blocks that are squared at a time: 8 MiB of float64.
constexpr int64_t kBlocksAtATime = 1024;

// The sum of squares of each block, in float64.
at::Tensor BlockSums(const at::Tensor& slice) {
  const at::Tensor blocks = slice.view({-1, kNormBlock});
  at::Tensor sums = at::empty({blocks.size(0)}, slice.options().dtype(at::kDouble));
  for (int64_t first = 0; first < blocks.size(0); first += kBlocksAtATime) {
    const int64_t num = std::min(kBlocksAtATime, blocks.size(0) - first);
    sums.narrow(0, first, num).copy_(blocks.narrow(0, first, num).to(at::kDouble).square_().sum(1));
  }
  return sums;
}

}  // namespace

at::Tensor ShardedOptimizer::Gradients() const {
  return optimizer_->gradients().Range({0, optimizer_->layout().size()});
}

void ShardedOptimizer::AddShare() {
  ++num_added_;
  if (num_shares_ == 1) return;  // they are in place
  const at::NoGradGuard no_grad;
  at::Tensor sum = Gradients().clone();
  int64_t size = 1;
  // As a counter carries: two sums of the same size become one of twice the size.
  while (!sums_.empty() && sums_.back().first == size) {
    sum = sums_.back().second.add_(sum);
    sums_.pop_back();
    size *= 2;
  }
  sums_.emplace_back(size, std::move(sum));
  optimizer_->ClearGradients();
  if (num_added_ < num_shares_) return;
  TAOPD_CHECK_EQ(sums_.size(), size_t{1});
  Gradients().copy_(sums_[0].second);
  sums_.clear();
}

absl::Status ShardedOptimizer::ReduceGradients() {
  TAOPD_CHECK_EQ(num_added_, num_shares_);
  num_added_ = 0;
  if (group_->world_size() == 1) return absl::OkStatus();
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = optimizer_->layout();
  for (const GradientBucket& bucket : layout.buckets()) {
    const at::Tensor input = optimizer_->gradients().Range(bucket.range);
    const at::Tensor slice =
        optimizer_->gradients().Range(layout.SliceOfBucket(bucket, group_->rank()));
    const at::Tensor sum = at::empty_like(slice);
    TAOPD_RETURN_IF_ERROR(group_->ReduceScatterTree(sum, input));
    slice.copy_(sum);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> ShardedOptimizer::GradientNorm() {
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = optimizer_->layout();
  double total = 0;
  for (const GradientBucket& bucket : layout.buckets()) {
    const at::Tensor slice =
        optimizer_->gradients().Range(layout.SliceOfBucket(bucket, group_->rank()));
    const at::Tensor sums = BlockSums(slice);
    const at::Tensor all = at::empty({bucket.range.size() / kNormBlock}, sums.options());
    TAOPD_RETURN_IF_ERROR(group_->AllGather(all, sums));
    const at::Tensor on_cpu = all.to(at::kCPU);
    const double* sum = on_cpu.const_data_ptr<double>();
    // One after the other: the gaps between parameters add zeros, which change nothing.
    for (int64_t i = 0; i < on_cpu.numel(); ++i) total += sum[i];
  }
  return std::sqrt(total);
}

absl::Status ShardedOptimizer::Update(double lr, double grad_norm) {
  optimizer_->Update(lr, grad_norm);
  return group_->world_size() == 1 ? absl::OkStatus() : GatherWeights();
}

absl::Status ShardedOptimizer::GatherWeights() {
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = optimizer_->layout();
  const FlatGradients& gradients = optimizer_->gradients();
  const at::TensorOptions weights = gradients.parameters().at(0).second.options();
  for (const GradientBucket& bucket : layout.buckets()) {
    const FlatRange mine = layout.SliceOfBucket(bucket, group_->rank());
    const at::Tensor slice = at::zeros({mine.size()}, weights.requires_grad(false));
    for (const ParameterPiece& piece : layout.Pieces({mine})) {
      InBuffer(slice, mine.begin, piece).copy_(InParameter(gradients, piece));
    }
    const at::Tensor all = at::empty({bucket.range.size()}, slice.options());
    TAOPD_RETURN_IF_ERROR(group_->AllGather(all, slice));
    for (const ParameterPiece& piece : layout.Pieces({bucket.range})) {
      InParameter(gradients, piece).copy_(InBuffer(all, bucket.range.begin, piece));
    }
  }
  return absl::OkStatus();
}

void ShardedOptimizer::Skip() { optimizer_->ClearGradients(); }

}  // namespace taopd
