// AdamW (Loshchilov and Hutter, 2019) with decoupled weight decay over a model's parameters,
// gradient accumulation in float32, and global-norm clipping; as torch.optim.AdamW and
// clip_grad_norm_, in one pass over all parameters (kernels/torch/layers/adamw.h). Parameters in
// bfloat16 have a float32 master copy that takes the update; moments are always float32. The
// gradient of a single micro-batch stays in the type it came in.
//
// Not thread-safe. Parameters are changed in place by Update: nothing may read them meanwhile.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "kernels/torch/layers/adamw.h"
#include "trainer/run_config.h"

namespace taopd {

class AdamW {
 public:
  AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config);

  // Adds the parameters' .grad to the sums and clears them. Once per micro-batch.
  void AccumulateGradients();

  // L2 norm of all accumulated gradients together. Non-finite when any gradient is.
  double GradientNorm() const;

  // Scales the gradients to max_grad_norm when their norm (given) exceeds it, applies one update
  // and clears the sums. REQUIRES: grad_norm is finite.
  void Update(double lr, double grad_norm);
  // Forgets the accumulated gradients (a skipped update).
  void ClearGradients();

  int64_t num_updates() const { return num_updates_; }

  // Moments, master copies and the update count, as a safetensors file. Load refuses a file of
  // other parameters by name and shape; on failure nothing has changed.
  absl::Status Save(const std::string& path) const;
  absl::Status Load(const std::string& path);

 private:
  std::vector<std::pair<std::string, at::Tensor>> State() const;

  OptimizerConfig config_;
  std::vector<std::string> names_;
  std::vector<AdamWState> states_;  // by name; `gradient` is the sum over the micro-batches so far
  int64_t num_updates_ = 0;
};

}  // namespace taopd
