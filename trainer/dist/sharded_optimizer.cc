#include "trainer/dist/sharded_optimizer.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "trainer/dist/gather_pieces.h"

namespace taopd {
namespace {

// Blocks of kFlatAlignment elements hold elements of one parameter each, so their sums do not
// depend on the layout.
constexpr int64_t kNormBlock = kFlatAlignment;
// The number of blocks that are squared at a time: 8 MiB of float64.
constexpr int64_t kBlocksAtATime = 1024;

// Returns the sum of squares of each block, in float64.
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

ShardedOptimizer::ShardedOptimizer(AdamW* optimizer, ProcessGroup* group, int64_t num_shares)
    : optimizer_(optimizer),
      group_(group),
      num_shares_(num_shares),
      exchange_(&optimizer->gradients(), group) {
  TAOPD_CHECK(num_shares == 1 || !every_pass_sends());
}

std::function<void(int64_t)> ShardedOptimizer::BeginPass(bool is_last) {
  // If there are several shares, they are added up before they are sent.
  const bool sends = every_pass_sends() || (is_last && num_shares_ == 1 && num_ranks() > 1);
  if (!sends) return nullptr;
  exchange_.Start();
  is_exchanging_ = true;
  return [this](int64_t layer) { exchange_.OnLayerBackward(layer); };
}

absl::Status ShardedOptimizer::EndPass() {
  // With whole gradients, the exchange of the last pass ends in ReduceGradients.
  if (!every_pass_sends()) return absl::OkStatus();
  is_exchanging_ = false;
  return exchange_.Finish();
}

void ShardedOptimizer::AddShare() {
  ++num_added_;
  if (num_shares_ == 1) return;  // the gradients are already in place
  const at::NoGradGuard no_grad;
  at::Tensor sum = Gradients().clone();
  int64_t size = 1;
  // Carries as a binary counter does: two sums of the same size become one of twice the size.
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
  if (num_ranks() == 1) return absl::OkStatus();
  absl::Status status;
  if (!every_pass_sends()) {
    if (!is_exchanging_) exchange_.Start();
    is_exchanging_ = false;
    status = exchange_.Finish();
  }
  exchange_.FreeBuffers();
  return status;
}

absl::StatusOr<double> ShardedOptimizer::GradientNorm() {
  const at::NoGradGuard no_grad;
  const ParameterLayout& layout = optimizer_->layout();
  std::vector<at::Tensor> mine;
  for (const GradientBucket& bucket : layout.buckets()) {
    mine.push_back(
        BlockSums(optimizer_->gradients().Range(layout.SliceOfBucket(bucket, group_->rank()))));
  }
  if (mine.empty()) return 0.0;
  const at::Tensor sums = at::cat(mine);
  const at::Tensor all = at::empty({num_ranks() * sums.numel()}, sums.options());
  TAOPD_RETURN_IF_ERROR(group_->AllGather(all, sums));
  const at::Tensor on_cpu = all.to(at::kCPU);
  // Adds the blocks in the order of the parameters: bucket by bucket, slice by slice. The gaps
  // between parameters add zeros, which change nothing.
  double total = 0;
  int64_t first = 0;
  for (const at::Tensor& slice : mine) {
    for (int64_t r = 0; r < num_ranks(); ++r) {
      const double* sum = on_cpu.const_data_ptr<double>() + r * sums.numel() + first;
      for (int64_t i = 0; i < slice.numel(); ++i) total += sum[i];
    }
    first += slice.numel();
  }
  return std::sqrt(total);
}

absl::Status ShardedOptimizer::Update(double lr, double grad_norm) {
  optimizer_->Update(lr, grad_norm);
  return num_ranks() == 1 ? absl::OkStatus() : GatherWeights();
}

absl::Status ShardedOptimizer::GatherWeights() {
  const FlatGradients& gradients = optimizer_->gradients();
  const auto in_parameter = [&](const ParameterPiece& piece) {
    return ElementsOf(gradients.parameters()[piece.position].second, piece);
  };
  return GatherPieces(optimizer_->layout(), group_, gradients.parameters(), in_parameter);
}

}  // namespace taopd
