// AdamW over the ranks of a group, divided as in ZeRO-2 (Rajbhandari et al., "ZeRO: memory
// optimizations toward training trillion parameter models", SC 2020). Every rank computes gradients
// of all parameters on its share of the sequences. The sums of a slice of the gradients go to the
// rank that owns the slice, which alone has its moments and master copy and updates it. Then all
// ranks collect the new weights.
//
// For each mini-batch:
//   for each share:
//     for each micro-batch: BeginPass, forward and backward pass, EndPass
//     AddShare()
//   ReduceGradients()
//   GradientNorm(), the same number on all ranks
//   Update(lr, norm) or Skip()
//
// With whole gradients (AdamWOptions::shard_gradients is false) a rank adds up its micro-batches in
// place and sends complete buckets to their owners during the last backward pass. With sharded
// gradients every pass sends, so all ranks need the same number of passes: a rank with fewer
// micro-batches calls BeginPass and EndPass without a pass in between.
//
// With whole gradients, the sums over shares and ranks form a fixed tree (SumTree), and the norm is
// summed over blocks of the parameters in their order. So for a given number of shares, the weights
// are the same bit for bit for any number of ranks.
//
// Owns only copies of gradients. Not thread-safe. All ranks must call the same functions in the
// same order.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "trainer/dist/gradient_exchange.h"
#include "trainer/optim/adamw.h"

namespace taopd {

class ShardedOptimizer {
 public:
  // `optimizer` has group->world_size() shards and holds shard group->rank(). Both must outlive the
  // object. `num_shares` is the number of calls of AddShare on this rank in a mini-batch, 1 for
  // sharded gradients.
  ShardedOptimizer(AdamW* optimizer, ProcessGroup* group, int64_t num_shares);

  // Returns whether all ranks need the same number of passes.
  bool every_pass_sends() const { return optimizer_->gradients().is_sharded() && num_ranks() > 1; }
  // Returns the callback to which the backward pass must report its layers
  // (ForwardOptions::on_layer_backward); it may be empty. `is_last` is true for this rank's last
  // pass of the mini-batch.
  std::function<void(int64_t layer)> BeginPass(bool is_last);
  // Returns the errors of the group.
  absl::Status EndPass();
  // Ends a share: the gradients since the last call are those of one share.
  void AddShare();
  // Makes this rank's slices the sums over all shares of all ranks; the other slices are undefined
  // afterwards. Returns the errors of the group.
  absl::Status ReduceGradients();
  // Returns the L2 norm of the whole reduced gradient.
  absl::StatusOr<double> GradientNorm();
  // Updates this rank's slices and collects the others'. After an error, some ranks may have
  // updated their weights and others not, and the group cannot be used.
  absl::Status Update(double lr, double grad_norm);
  // Discards the gradients of the mini-batch.
  void Skip() { optimizer_->ClearGradients(); }

 private:
  int64_t num_ranks() const { return group_->world_size(); }
  at::Tensor Gradients() const {
    return optimizer_->gradients().Range({0, optimizer_->layout().size()});
  }
  absl::Status GatherWeights();

  AdamW* const optimizer_;
  ProcessGroup* const group_;
  const int64_t num_shares_;
  GradientExchange exchange_;
  bool is_exchanging_ = false;
  int64_t num_added_ = 0;
  // Sums over neighboring shares with the numbers of shares, which are descending powers of two.
  std::vector<std::pair<int64_t, at::Tensor>> sums_;
};

}  // namespace taopd
