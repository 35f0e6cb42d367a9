// Linked into a test binary, this file runs all of its tests with the kernels that the environment
// variable TAOPD_TEST_KERNELS names: "composed" for none of the project's own. ctest runs some
// programs a second time that way.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "kernels/torch/kernel_choice.h"

namespace taopd::testing {
namespace {

class KernelsOfTest : public ::testing::Environment {
 public:
  void SetUp() override {
    const char* const kernels = std::getenv("TAOPD_TEST_KERNELS");
    if (kernels == nullptr) return;
    ASSERT_EQ(std::string(kernels), "composed") << "TAOPD_TEST_KERNELS";
    UseKernels(KernelChoice::Composed());
  }
};

[[maybe_unused]] const auto* const kEnvironment =
    ::testing::AddGlobalTestEnvironment(new KernelsOfTest);

}  // namespace
}  // namespace taopd::testing
