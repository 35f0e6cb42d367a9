// AdamW (Loshchilov and Hutter, 2019) with decoupled weight decay over a model's parameters, gradient
// accumulation in float32, and global-norm clipping. Parameters in bfloat16 have a float32 master copy
// that takes the update; moments are always float32.
//
// Not thread-safe. Parameters are changed in place by Update: nothing may read them meanwhile.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "trainer/run_config.h"

namespace taopd {

class AdamW {
 public:
  AdamW(std::vector<NamedParameter> parameters, const OptimizerConfig& config);

  // Adds the parameters' .grad to the float32 sums and clears them. Once per micro-batch.
  void AccumulateGradients();

  // L2 norm of all accumulated gradients together. Non-finite when any gradient is.
  double GradientNorm() const;

  // Scales the gradients to max_grad_norm when their norm (given) exceeds it, applies one update and
  // clears the sums. REQUIRES: grad_norm is finite.
  void Update(double lr, double grad_norm);
  // Forgets the accumulated gradients (a skipped update).
  void ClearGradients();

  int64_t num_updates() const { return num_updates_; }

  // Moments, master copies and the update count, as a safetensors file. Load refuses a file of other
  // parameters by name and shape; on failure nothing has changed.
  absl::Status Save(const std::string& path) const;
  absl::Status Load(const std::string& path);

 private:
  struct Slot {
    std::string name;
    at::Tensor parameter;
    at::Tensor master;      // float32; the parameter itself when that is float32
    at::Tensor grad_sum;    // float32; undefined until the first accumulation
    at::Tensor exp_avg;     // float32
    at::Tensor exp_avg_sq;  // float32
    double weight_decay = 0;
  };
  std::vector<std::pair<std::string, at::Tensor>> State() const;

  OptimizerConfig config_;
  std::vector<Slot> slots_;
  int64_t num_updates_ = 0;
};

}  // namespace taopd
