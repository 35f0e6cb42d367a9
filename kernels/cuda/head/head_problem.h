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
inline std::string SizesError(const HeadInputs& problem) {
  std::ostringstream error;
  if (problem.num_rows < 0 || problem.hidden_size < 1) {
    error << "hidden has shape [" << problem.num_rows << ", " << problem.hidden_size << "]";
  } else if (problem.vocab_size < 1 || problem.vocab_size > std::numeric_limits<int32_t>::max()) {
    error << "vocab_size is " << problem.vocab_size << ", must be in [1, 2^31)";
  } else if (problem.hidden_stride < problem.hidden_size ||
             problem.lm_head_stride < problem.hidden_size) {
    error << "strides are " << problem.hidden_stride << " and " << problem.lm_head_stride
          << ", must be at least hidden_size " << problem.hidden_size;
  } else if (!(problem.temperature > 0) || !std::isfinite(problem.temperature)) {
    error << "temperature is " << problem.temperature << ", must be positive";
  }
  return error.str();
}

// Returns the error for a workspace that does not fit even one row.
inline std::string WorkspaceTooSmall(int64_t workspace_bytes, int64_t row_bytes) {
  return "the workspace has " + std::to_string(workspace_bytes) + " bytes, one row takes " +
         std::to_string(row_bytes);
}

}  // namespace taopd::cuda
