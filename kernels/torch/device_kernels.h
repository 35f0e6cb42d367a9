// The launches of kernels/cuda as a table that can be replaced: the check at the start compares the
// functions of a table with their compositions, and the tests give it the kernels of the emulated
// run-time and planted wrong ones. The contracts are in kernels/include.
#pragma once

#include <c10/core/Device.h>

#include "taopd/attention/paged_attention_cuda.h"
#include "taopd/head/fused_head.h"
#include "taopd/head/fused_scoring.h"
#include "taopd/layers/adamw.h"
#include "taopd/layers/norms_and_swiglu.h"
#include "taopd/sampling/sample_rows.h"

namespace taopd {

// The members are by default the kernels that the program is linked with: those of kernels/cuda, or
// in tests those of the emulated run-time. Programs without either must not make one.
struct DeviceKernels {
  decltype(&FusedHead) fused_head = FusedHead;
  decltype(&FusedScoring) fused_scoring = FusedScoring;
  decltype(&RmsNormForwardCuda) rms_norm_forward = RmsNormForwardCuda;
  decltype(&RmsNormBackwardCuda) rms_norm_backward = RmsNormBackwardCuda;
  decltype(&HeadsForwardCuda) heads_forward = HeadsForwardCuda;
  decltype(&HeadsBackwardCuda) heads_backward = HeadsBackwardCuda;
  decltype(&SwiGluForwardCuda) swiglu_forward = SwiGluForwardCuda;
  decltype(&SwiGluBackwardCuda) swiglu_backward = SwiGluBackwardCuda;
  decltype(&RotateAndAppendCuda) rotate_and_append = RotateAndAppendCuda;
  decltype(&PagedAttentionCuda) paged_attention = PagedAttentionCuda;
  decltype(&SampleRowsCuda) sample_rows = SampleRowsCuda;
  decltype(&AdamWCuda) adamw = AdamWCuda;
  decltype(&SumsOfSquaresCuda) sums_of_squares = SumsOfSquaresCuda;
};

// Returns the table of the kernels that the program is linked with. The reference stays valid.
inline const DeviceKernels& LinkedKernels() {
  static const DeviceKernels kernels;
  return kernels;
}

// While the object exists, the layers and AdamW launch these kernels when its thread calls them, on
// tensors of any device.
class ScopedDeviceKernels {
 public:
  explicit ScopedDeviceKernels(const DeviceKernels& kernels) { current_ = &kernels; }
  ~ScopedDeviceKernels() { current_ = nullptr; }
  ScopedDeviceKernels(const ScopedDeviceKernels&) = delete;
  ScopedDeviceKernels& operator=(const ScopedDeviceKernels&) = delete;

  static const DeviceKernels* current() { return current_; }

 private:
  static inline thread_local const DeviceKernels* current_ = nullptr;
};

// Returns the kernels for tensors of the device, or nullptr if there are none in this build.
inline const DeviceKernels* DeviceKernelsFor(c10::Device device) {
  if (ScopedDeviceKernels::current() != nullptr) return ScopedDeviceKernels::current();
#ifdef TAOPD_CUDA
  if (device.is_cuda()) return &LinkedKernels();
#endif
  return nullptr;
}

}  // namespace taopd
