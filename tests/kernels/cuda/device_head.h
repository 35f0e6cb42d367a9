// The inputs and the workspace of a head on the device.
#pragma once

#include <cstdint>

#include "taopd/head/head_inputs.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/cuda/head_problem.h"

namespace taopd {

class DeviceHead {
 public:
  DeviceHead(const HeadMatrices& matrices, int64_t workspace_bytes)
      : matrices_(matrices),
        hidden_(Bytes(matrices.hidden_NH, matrices.hidden_size, kPadding, matrices.dtype)),
        lm_head_(Bytes(matrices.lm_head_VH, matrices.hidden_size, kPadding, matrices.dtype)),
        workspace_(workspace_bytes),
        workspace_bytes_(workspace_bytes) {}

  HeadInputs Inputs(double temperature) {
    HeadInputs inputs = {.dtype = matrices_.dtype,
                         .num_rows = matrices_.num_rows,
                         .hidden_size = matrices_.hidden_size,
                         .vocab_size = matrices_.vocab_size,
                         .hidden_NH = hidden_.data(),
                         .lm_head_VH = lm_head_.data()};
    inputs.hidden_stride = inputs.lm_head_stride = matrices_.hidden_size + kPadding;
    inputs.temperature = temperature;
    return inputs;
  }

  DeviceContext Context() {
    return {.cublaslt = TestCublasLt(),
            .workspace = workspace_.data(),
            .workspace_bytes = workspace_bytes_};
  }

 private:
  static constexpr int64_t kPadding = 8;  // elements after each row; keeps the alignment of rows

  const HeadMatrices& matrices_;
  DeviceArray<uint8_t> hidden_, lm_head_, workspace_;
  int64_t workspace_bytes_;
};

}  // namespace taopd
