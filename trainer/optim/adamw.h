// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) over a model's parameters, with
// gradient accumulation and clipping by the global norm. It computes what torch.optim.AdamW and
// clip_grad_norm_ compute, in one pass over all parameters (kernels/torch/layers/adamw.h).
//
// Gradients: backward passes add to the parameters' .grad, which are float32 views of one flat
// buffer (flat_gradients.h). The caller runs any number of micro-batches, then calls Update or
// ClearGradients, which leave zeros for the next mini-batch. A parameter that no micro-batch used
// has the gradient zero: its moments and its weight decay go on.
//
// Precision: Moments are float32, or bfloat16 with stochastic rounding (config.moments), whose
// random bits depend on the update's number, the parameter and the element alone. A bfloat16
// parameter has a float32 master copy, which takes the update; without one (config.master is none)
// the parameter takes it, rounded with other bits of the same kind. Weight decay applies to
// parameters with two or more dimensions only.
//
// Devices: State and arithmetic are on the parameters' device. With config.offload they are on the
// host (host_update.h), and the weights have the same bits as far as both devices compute the same.
//
// Shards: with options.layout.num_shards > 1, the object has moments and master copies for the
// elements of its shard only, and Update changes only those elements of the parameters. Before it,
// the caller makes the shard's slices of the gradients the sums over all ranks; after it, it
// collects the other ranks' elements. With options.shard_gradients the other slices' sums are not
// there at all, and backward passes need sections that the caller opens (flat_gradients.h). What is
// saved names parameters and offsets, so that a run may continue with another number of shards.
//
// Not thread-safe. Update changes the parameters in place, so nothing may read them during the
// call.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "kernels/torch/layers/adamw.h"
#include "trainer/config/run_config.h"
#include "trainer/optim/flat_gradients.h"
#include "trainer/optim/host_update.h"
#include "trainer/optim/saved_state.h"

namespace taopd {

struct AdamWOptions {
  ParameterLayoutOptions layout;
  int64_t shard = 0;  // of layout.num_shards
  bool shard_gradients = false;
};

class AdamW {
 public:
  // Gives all parameters their .grad, unless gradients are sharded, until the destructor takes them
  // away.
  AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config,
        const AdamWOptions& options = {});

  const ParameterLayout& layout() const { return gradients_.layout(); }
  const FlatGradients& gradients() const { return gradients_; }
  FlatGradients& gradients() { return gradients_; }
  // What the shard holds of the parameters, in the order of Decoder::Parameters.
  const std::vector<ParameterPiece>& pieces() const { return pieces_; }

  // Returns the sum of squares of the gradients in these ranges of the flat space (ascending,
  // disjoint), in float64: over the parameters in their order, and within each over blocks that do
  // not depend on the number of threads. It is not finite if any gradient is not.
  double SumOfSquares(const std::vector<FlatRange>& ranges) const;
  // Returns the L2 norm of the shard's gradients together; of all gradients for one shard.
  double GradientNorm() const;

  // Applies one update to the shard's parameters and sets all gradients to zero. If grad_norm, the
  // norm of the whole gradient, exceeds max_grad_norm, the gradients are scaled down to it first.
  // REQUIRES: grad_norm is finite.
  void Update(double lr, double grad_norm);
  // Sets all gradients to zero without an update.
  void ClearGradients();

  int64_t num_updates() const { return num_updates_; }
  // For a state that was restored through State().
  void RestoreNumUpdates(int64_t num_updates) { num_updates_ = num_updates; }

  // Consecutive elements of one tensor of the optimizer's state, named after its parameter:
  // exp_avg.NAME, exp_avg_sq.NAME, and master.NAME if the parameter has a master copy.
  struct StateSlice {
    std::string name;
    std::vector<int64_t> shape;  // of the whole tensor, which is the parameter's
    int64_t offset = 0;          // of the first element in it
    at::Tensor values;           // 1-D, a view
  };
  std::vector<StateSlice> State() const;

  // The moments, the master copies and the number of updates as a safetensors file has them, one
  // tensor for each parameter; with `copies`, no later update changes them. REQUIRES: there is one
  // shard.
  StateToWrite StateToSave(bool copies) const;
  // Writes that file.
  absl::Status Save(const std::string& path) const;
  // Reads what Save wrote; a shard takes its part. Moments that were saved in the other type are
  // converted, to bfloat16 by rounding to nearest. Master copies that were saved are ignored if the
  // optimizer has none; where none were saved, they become what the parameters are. Returns
  // DATA_LOSS for a file whose parameters have other names or shapes. A Load that fails changes
  // nothing.
  absl::Status Load(const std::string& path);
  // Makes the master copies what the parameters are: for a saved state that has none.
  void CopyParametersToMasters();

 private:
  bool HasMaster(const at::Tensor& parameter) const;
  std::vector<at::Tensor> GradientsOf(const std::vector<ParameterPiece>& pieces) const;
  // The shapes of all tensors of a saved state, by name.
  std::map<std::string, std::vector<int64_t>> SavedShapes(bool with_masters) const;

  const OptimizerConfig config_;
  FlatGradients gradients_;
  const std::vector<FlatRange> shard_;
  const std::vector<ParameterPiece> pieces_;
  std::vector<AdamWState> states_;    // of pieces_: views of the parameters and of flat buffers
  std::unique_ptr<HostUpdate> host_;  // of states_; null unless config.offload
  int64_t num_updates_ = 0;
};

}  // namespace taopd
