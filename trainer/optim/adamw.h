// AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) over a model's parameters, with
// gradient accumulation and clipping by the global norm. It computes what torch.optim.AdamW and
// clip_grad_norm_ compute, in one pass over all parameters (kernels/torch/layers/adamw.h).
//
// Precision: Moments are float32. A bfloat16 parameter has a float32 master copy, which takes the
// update. Gradients are accumulated in float32; the gradient of a single micro-batch keeps its
// type. Weight decay applies to parameters with two or more dimensions only.
//
// Not thread-safe. Update changes the parameters in place, so nothing may read them during the
// call.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "kernels/torch/layers/adamw.h"
#include "trainer/config/run_config.h"

namespace taopd {

class AdamW {
 public:
  AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config);

  // Adds the parameters' .grad to the accumulated gradients and clears it. Call it once for each
  // micro-batch.
  void AccumulateGradients();

  // Returns the L2 norm of all accumulated gradients together. It is not finite if any gradient is
  // not.
  double GradientNorm() const;

  // Applies one update and clears the accumulated gradients. If grad_norm, their norm, exceeds
  // max_grad_norm, they are scaled down to it first. REQUIRES: grad_norm is finite.
  void Update(double lr, double grad_norm);
  // Discards the accumulated gradients without an update.
  void ClearGradients();

  int64_t num_updates() const { return num_updates_; }

  // Writes and reads the moments, the master copies and the number of updates as a safetensors
  // file. Load returns DATA_LOSS for a file whose parameters have other names or shapes. A Load
  // that fails changes nothing.
  absl::Status Save(const std::string& path) const;
  absl::Status Load(const std::string& path);

 private:
  std::vector<std::pair<std::string, at::Tensor>> State() const;

  OptimizerConfig config_;
  std::vector<std::string> names_;
  std::vector<AdamWState> states_;  // in the order of names_; `gradient` is the accumulated one
  int64_t num_updates_ = 0;
};

}  // namespace taopd
