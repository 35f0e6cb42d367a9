// Linked into a test binary, this file runs its tests on a GPU and skips them where there is none.
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include "tests/kernels/torch/test_device.h"

namespace taopd::testing {

at::Device TestDevice() { return at::kCUDA; }

namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
  }
};

[[maybe_unused]] const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace taopd::testing
