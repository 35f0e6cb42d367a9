// The kernels of a part of a test.
#pragma once

#include "kernels/torch/kernel_choice.h"

namespace taopd::testing {

// Sets the kernels of the process while the object exists.
class ScopedKernels {
 public:
  explicit ScopedKernels(KernelChoice choice) : before_(KernelsInUse()) { UseKernels(choice); }
  ~ScopedKernels() { UseKernels(before_); }
  ScopedKernels(const ScopedKernels&) = delete;
  ScopedKernels& operator=(const ScopedKernels&) = delete;

 private:
  const KernelChoice before_;
};

}  // namespace taopd::testing
