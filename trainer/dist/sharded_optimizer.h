// AdamW over the ranks of a group, as ZeRO-2 divides it (Rajbhandari et al., "ZeRO: memory
// optimizations toward training trillion parameter models", SC 2020): every rank computes gradients
// of all parameters on its share of the sequences; their sums go, slice by slice, to the rank that
// owns the slice; it alone has the moments and the master copy of the slice and updates it; then
// all collect the new weights.
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
// place, and what is complete goes to its owner during the last backward pass. With sharded ones
// every pass sends, so all ranks need equally many passes: one with fewer micro-batches calls
// BeginPass and EndPass without a pass in between.
//
// The sums over whole gradients of shares and ranks are a fixed tree (common/dist/tree_sum.h), and
// the norm is summed over blocks of the parameters, in their order. So for one number of shares all
// weights are the same, bit for bit, whatever the number of ranks.
//
// Owns nothing but copies of gradients. Not thread-safe; all ranks call the same functions.
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
  // `optimizer` has group->world_size() shards and is rank `group->rank()`'s; both outlive the
  // object. `num_shares` is how often AddShare is called on this rank in a mini-batch: once for
  // sharded gradients.
  ShardedOptimizer(AdamW* optimizer, ProcessGroup* group, int64_t num_shares);

  // Whether all ranks need equally many passes.
  bool every_pass_sends() const { return optimizer_->gradients().is_sharded() && num_ranks() > 1; }
  // Returns what the backward pass is to report its layers to (ForwardOptions::on_layer_backward);
  // it may be empty. `is_last`: this rank's last pass of the mini-batch.
  std::function<void(int64_t layer)> BeginPass(bool is_last);
  // Errors are those of the group.
  absl::Status EndPass();
  // The gradients so far are those of one more share.
  void AddShare();
  // Makes this rank's slices the sums over all shares of all ranks. The other slices are undefined
  // then. Errors are those of the group.
  absl::Status ReduceGradients();
  // The L2 norm of the whole reduced gradient.
  absl::StatusOr<double> GradientNorm();
  // Updates this rank's slices and collects the others'. After an error some ranks may have updated
  // weights and others not: the group cannot be used any more.
  absl::Status Update(double lr, double grad_norm);
  // Discards the gradients of the mini-batch.
  void Skip();

 private:
  int64_t num_ranks() const { return group_->world_size(); }
  at::Tensor Gradients() const;
  absl::Status GatherWeights();

  AdamW* const optimizer_;
  ProcessGroup* const group_;
  const int64_t num_shares_;
  GradientExchange exchange_;
  bool is_exchanging_ = false;
  int64_t num_added_ = 0;
  // Sums over neighbouring shares with their sizes, which are falling powers of two.
  std::vector<std::pair<int64_t, at::Tensor>> sums_;
};

}  // namespace taopd
