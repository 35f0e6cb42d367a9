// Draws tokens on the device that holds the logits, so that only tokens come to the host: the call
// of taopd/sampling/sample_rows.h on tensors.
//
// Shapes: S rows of logits, V vocabulary.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "taopd/sampling/sample_rows.h"

namespace taopd {

// The functions of sample_rows.h for a device, or the composition in their place
// (kernels/torch/composed/sampling.h).
struct RowSampler {
  std::string (*sample)(const SampleRows& problem, const DeviceContext& context) = nullptr;
  int64_t (*workspace_bytes)(int64_t num_rows, int64_t vocab_size) = nullptr;

  bool composed = false;

  bool defined() const { return composed || sample != nullptr; }
};

// Returns an undefined sampler where the host samples: for logits on the CPU, and in builds without
// TAOPD_CUDA, unless the process does without the kernels (kernels/torch/kernel_choice.h).
RowSampler RowSamplerOn(at::Device device);

struct RowToDraw {
  int64_t row = 0;        // row of the logits; several draws may share one
  float temperature = 1;  // 0: the largest logit
  double uniform = 0;     // in (0, 1)
};

struct DrawnRow {
  int32_t id = 0;
  float log_prob = 0;      // under the temperature, or under 1 if that is 0
  float raw_log_prob = 0;  // under temperature 1
  bool invalid = false;    // a logit of the row is NaN or +inf, or all are -inf
};

// Returns the drawn tokens in the order of `rows`. Waits for the device once. logits is float32
// with contiguous rows, on the sampler's device. Throws c10::Error if the sampler fails. Any thread
// may call it. REQUIRES: sampler.defined().
std::vector<DrawnRow> DrawRows(const at::Tensor& logits_SV, const std::vector<RowToDraw>& rows,
                               const RowSampler& sampler);

}  // namespace taopd
