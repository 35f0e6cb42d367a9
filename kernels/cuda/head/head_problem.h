// The checks and computations that both heads apply to their problems.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>

#include "kernels/cuda/launch.h"
#include "taopd/head/head_inputs.h"

namespace taopd::cuda {

// Returns the stride of a row of logits in elements: each row starts on a new cache line.
inline int64_t LogitsStride(int64_t vocab_size) { return RoundUp(vocab_size, 64); }

// Returns the first problem with the sizes, strides and temperature, or an empty string.
inline std::string SizesError(const HeadInputs& p) {
  std::ostringstream problem;
  if (p.num_rows < 0 || p.hidden_size < 1) {
    problem << "hidden has shape [" << p.num_rows << ", " << p.hidden_size << "]";
  } else if (p.vocab_size < 1 || p.vocab_size > std::numeric_limits<int32_t>::max()) {
    problem << "vocab_size is " << p.vocab_size << ", must be in [1, 2^31)";
  } else if (p.hidden_stride < p.hidden_size || p.lm_head_stride < p.hidden_size) {
    problem << "strides are " << p.hidden_stride << " and " << p.lm_head_stride
            << ", must be at least hidden_size " << p.hidden_size;
  } else if (!(p.temperature > 0) || !std::isfinite(p.temperature)) {
    problem << "temperature is " << p.temperature << ", must be positive";
  }
  return problem.str();
}

// Returns the error for a workspace that does not fit even one row.
inline std::string WorkspaceTooSmall(int64_t workspace_bytes, int64_t row_bytes) {
  return "the workspace has " + std::to_string(workspace_bytes) + " bytes, one row takes " +
         std::to_string(row_bytes);
}

}  // namespace taopd::cuda
