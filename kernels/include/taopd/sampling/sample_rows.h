// Chooses a token from each row of logits on CUDA, for requests that use a temperature and nothing
// else: no top-k, top-p or min-p, no masks, bias or penalties.
//
// The token is the one that the engine's Sampler (common/engine/sampling/sampler.h) takes on the
// CPU from the same logits and the same uniform number: the weights 2^x and their sums are computed
// by the same operations in the same order as in kernels/cpu/math/weight_row.h. Log-probs may
// differ in the last bit, because they use the device's logarithm. A row's results do not depend on
// the other rows.
//
// Shapes: S rows, V vocabulary size.
#pragma once

#include <cstdint>
#include <string>

#include "taopd/base/device.h"

namespace taopd {

// All pointers are to device memory.
struct SampleRows {
  int64_t num_rows = 0;    // S
  int64_t vocab_size = 0;  // V, in [1, 2^31)
  const float* logits_SV = nullptr;
  int64_t logits_stride = 0;  // elements from row to row, at least V
  // At least 0. 0 takes the largest logit, and the lower id of equal ones.
  const float* temperatures_S = nullptr;
  // In (0, 1): the number of RandomStream for the row's step. The sampled token is the one where
  // the cumulative sum of the weights, in the order of the ids, passes this fraction of their
  // total.
  const double* uniforms_S = nullptr;
  int32_t* ids_S = nullptr;
  float* log_probs_S = nullptr;      // under the temperature, or under 1 if that is 0; may be null
  float* raw_log_probs_S = nullptr;  // under temperature 1; may be null
  // 1 if the logits of the row hold a NaN or +inf or are all -inf, otherwise 0. For 1, the row's id
  // is -1 and its log-probs are NaN.
  int32_t* invalid_S = nullptr;
};

// Returns the bytes of workspace that the call needs.
int64_t SampleRowsWorkspaceBytes(int64_t num_rows, int64_t vocab_size);

// Keeps the contract of taopd/base/device.h. Does not need cuBLASLt.
std::string SampleRowsCuda(const SampleRows& problem, const DeviceContext& context);

}  // namespace taopd
