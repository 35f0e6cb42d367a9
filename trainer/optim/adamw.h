// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) over a model's parameters, with
// gradient accumulation and clipping by the global norm. It computes what torch.optim.AdamW and
// clip_grad_norm_ compute, in one pass over all parameters (kernels/torch/layers/adamw.h).
//
// Gradients: Backward passes add to the parameters' .grad, which are float32 views of one flat
// buffer (flat_gradients.h). The caller runs any number of micro-batches, then calls Update or
// ClearGradients, which leave zeros for the next mini-batch. A parameter that no micro-batch used
// has the gradient zero; its moments still decay and its weight decay still applies.
//
// Precision: Moments are float32, or bfloat16 with stochastic rounding (config.moments). The random
// bits of the rounding depend only on the update's number, the parameter and the element. A
// bfloat16 parameter has a float32 master copy, to which updates are applied. Without one
// (config.master is none), updates are applied to the parameter itself with stochastic rounding.
// Weight decay applies only to parameters with two or more dimensions.
//
// Devices: State and arithmetic are on the parameters' device, or on the host with config.offload
// (host_update.h). The weights have the same bits either way, provided that both devices compute
// the same bits.
//
// Shards: With options.layout.num_shards > 1, the object holds moments and master copies only for
// the elements of its shard, and Update changes only those elements of the parameters. Before
// Update, the caller sums the shard's slices of the gradients over all ranks; after it, the caller
// collects the other ranks' elements. With options.shard_gradients the sums of the other slices are
// not kept, and the caller must open sections for the backward passes (flat_gradients.h). The saved
// state is keyed by parameter names and offsets, so a run may continue with another number of
// shards.
//
// Not thread-safe. Update changes the parameters in place, so nothing may read them during the
// call.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
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
  int64_t shard = 0;  // index in [0, layout.num_shards)
  bool shard_gradients = false;
  // Keeps a float32 average of the weights next to the moments (UpdateAverage).
  bool keeps_average = false;
};

class AdamW {
 public:
  // Sets the .grad of all parameters, unless gradients are sharded; the destructor removes them.
  AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config,
        const AdamWOptions& options = {});

  const ParameterLayout& layout() const { return gradients_.layout(); }
  const FlatGradients& gradients() const { return gradients_; }
  FlatGradients& gradients() { return gradients_; }

  // Returns the L2 norm of the shard's gradients, which are all gradients if there is one shard.
  // The sum of squares is in float64. It runs over the parameters in their order, and within each
  // over blocks that do not depend on the number of threads. The norm is not finite if any gradient
  // is not. ShardedOptimizer::GradientNorm sums in an order that does not depend on the shards.
  double GradientNorm() const;

  // Applies one update to the shard's parameters and sets all gradients to zero. If grad_norm, the
  // norm of the whole gradient, exceeds max_grad_norm, the gradients are first scaled down to
  // max_grad_norm. REQUIRES: grad_norm is finite.
  void Update(double lr, double grad_norm);
  // Sets all gradients to zero without an update.
  void ClearGradients() { gradients_.Zero(); }

  // Sets average = decay * average + (1 - decay) * weights, in float32, for the shard's elements;
  // the weights are the master copies where there are some. The average starts as the weights. The
  // bits do not depend on the shards. REQUIRES: keeps_average.
  void UpdateAverage(double decay);
  bool keeps_average() const { return average_S_.defined(); }
  // Returns the average of the elements of a piece, which must belong to the shard.
  at::Tensor AverageOf(const ParameterPiece& piece) const {
    return average_S_.narrow(0, PlaceOf(piece), piece.size);
  }

  // Grows as soon as Update or UpdateAverage is called, before anything changes. If such a call
  // throws, for lack of memory, the parameters or the average may be between two steps. A caller
  // that catches the exception may therefore save the state only if this number is what it was at
  // the end of the step before.
  int64_t num_changes() const { return num_changes_; }
  int64_t num_updates() const { return num_updates_; }

  // Consecutive elements of one tensor of the optimizer's state, named after its parameter:
  // exp_avg.NAME, exp_avg_sq.NAME, master.NAME if the parameter has a master copy, and average.NAME
  // with keeps_average.
  struct StateSlice {
    std::string name;
    std::vector<int64_t> shape;  // shape of the whole tensor, which is the parameter's
    int64_t offset = 0;          // index of the first element in the tensor
    at::Tensor values;           // 1-D, a view
  };
  std::vector<StateSlice> State() const;

  // Returns State() and the number of updates as the contents of a safetensors file, with one
  // tensor of each kind per parameter. With `copies`, later updates do not change it. REQUIRES:
  // there is one shard.
  StateToWrite StateToSave(bool copies) const;
  // Reads such a file; a shard reads its part. Moments saved in the other type are converted, to
  // bfloat16 by rounding to nearest. Saved master copies and averages are ignored if the optimizer
  // has none; missing ones are copied from the parameters. Returns DATA_LOSS if the parameters in
  // the file have other names or shapes. If Load fails, nothing changes.
  absl::Status Load(const std::string& path);
  // Ends the restoration of a state whose values the caller has written through State(). A kind of
  // tensor that the saved state does not have is copied from the parameters, if the optimizer has
  // it: the master copies without `has_masters`, the average without `has_averages`.
  void CompleteState(int64_t num_updates, bool has_masters, bool has_averages);
  void CopyParametersToMasters();

 private:
  bool HasMaster(const at::Tensor& parameter) const {
    return config_.master == MasterWeights::kFloat32 && parameter.scalar_type() != at::kFloat;
  }
  // Returns the place of a piece of the shard in buffers of the shard's length.
  int64_t PlaceOf(const ParameterPiece& piece) const;
  // Returns the shapes of all tensors of a saved state, by name.
  std::map<std::string, std::vector<int64_t>> SavedShapes(bool with_masters,
                                                          bool with_averages) const;

  const OptimizerConfig config_;
  FlatGradients gradients_;
  const std::vector<FlatRange> shard_;
  const std::vector<ParameterPiece> pieces_;  // of the shard, in the order of Decoder::Parameters
  // The place of each range of shard_ in buffers of the shard's length.
  std::vector<int64_t> place_of_range_;
  at::Tensor average_S_;  // undefined without keeps_average
  // One per element of pieces_: views of the parameters and of flat buffers.
  std::vector<AdamWState> states_;
  std::unique_ptr<HostUpdate> host_;  // updates states_ on the host; null unless config.offload
  int64_t num_updates_ = 0;
  int64_t num_changes_ = 0;
};

}  // namespace taopd
