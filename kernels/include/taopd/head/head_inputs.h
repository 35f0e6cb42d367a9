// The factors that the student's and the teacher's head on CUDA multiply: hidden states and
// lm_head, as raw pointers to device memory.
#pragma once

#include <cstdint>

#include "taopd/base/data_type.h"

namespace taopd {

// Matrices are row-major; strides count elements.
struct HeadInputs {
  // The type of hidden and lm_head.
  DataType dtype = DataType::kBFloat16;
  int64_t num_rows = 0;     // N >= 0
  int64_t hidden_size = 0;  // H >= 1
  // V in [1, 2^31). The first V rows of lm_head are the vocabulary. If lm_head is padded with more
  // rows, those are neither read nor given a gradient.
  int64_t vocab_size = 0;
  const void* hidden_NH = nullptr;
  int64_t hidden_stride = 0;  // >= H
  const void* lm_head_VH = nullptr;
  int64_t lm_head_stride = 0;  // >= H
  // t > 0, finite: logits are divided by it.
  double temperature = 1;
};

}  // namespace taopd
