// AdamW by LibTorch's operations against the CPU's kernel: the same arithmetic and the same random
// bits. tests/kernels/torch/layers/adamw_test.cc, which compares with ATen's AdamW, runs with the
// composition as well (kernels_composed in tests/kernels/CMakeLists.txt).
#include <gtest/gtest.h>

#include <string>

#include "kernels/torch/layers/adamw.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/support/scoped_kernels.h"

namespace taopd::testing {
namespace {

// The last bits of one float32 update.
constexpr double kFloatTolerance = 1e-6;
// A last bit of float32 rounds one bfloat16 number of some thousands the other way.
constexpr double kMostRoundedOtherwise = 0.002;

constexpr int64_t kSize = (1 << 20) + 4099;  // two pieces

AdamWState MakeState(bool has_master, at::ScalarType moments, at::ScalarType gradients) {
  AdamWState state;
  state.parameter = RandomTensor({kSize}, 1).to(at::kBFloat16);
  if (has_master) state.master = state.parameter.to(at::kFloat);
  state.gradient = RandomTensor({kSize}, 2).to(gradients);
  state.exp_avg = RandomTensor({kSize}, 3).mul_(0.1).to(moments);
  state.exp_avg_sq = RandomTensor({kSize}, 4).square_().to(moments);
  state.weight_decay = 0.1;
  state.number = 5;
  // The counter of elements passes 2^32.
  state.first_element = (int64_t{1} << 32) - 1000;
  return state;
}

void Update(const AdamWState& state, KernelChoice choice) {
  const ScopedKernels kernels(choice);
  UpdateAdamW({0.01, 0.9, 0.95, 1e-8, 3, 0.7}, {state});
}

void ExpectAlmostEqual(const at::Tensor& actual, const at::Tensor& expected,
                       const std::string& what) {
  if (!actual.defined()) return;
  const at::Tensor difference = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs();
  if (actual.scalar_type() == at::kFloat) {
    EXPECT_LE(difference.max().item<double>(),
              kFloatTolerance * expected.abs().max().item<double>())
        << what;
    return;
  }
  EXPECT_LE(actual.ne(expected).to(at::kDouble).mean().item<double>(), kMostRoundedOtherwise)
      << what;
  const at::Tensor step = expected.to(at::kDouble).abs() / 128 + 1e-30;  // of bfloat16
  EXPECT_LE((difference / step).max().item<double>(), 1) << what;
}

TEST(ComposedAdamW, MatchesTheCpuKernelWithItsRandomBits) {
  for (const bool has_master : {true, false}) {
    for (const auto moments : {at::kFloat, at::kBFloat16}) {
      // Both types of gradients occur with each of the other two.
      const auto gradients = has_master == (moments == at::kFloat) ? at::kFloat : at::kBFloat16;
      const AdamWState custom = MakeState(has_master, moments, gradients);
      const AdamWState composed = MakeState(has_master, moments, gradients);
      const int64_t version = static_cast<int64_t>(composed.parameter._version());
      Update(custom, KernelChoice::Custom());
      Update(composed, KernelChoice::Composed());
      const std::string what = std::string(has_master ? "master, " : "no master, ") +
                               (moments == at::kFloat ? "float32" : "bfloat16") + " moments";
      ExpectAlmostEqual(composed.parameter, custom.parameter, what + ": parameter");
      ExpectAlmostEqual(composed.master, custom.master, what + ": master");
      ExpectAlmostEqual(composed.exp_avg, custom.exp_avg, what + ": exp_avg");
      ExpectAlmostEqual(composed.exp_avg_sq, custom.exp_avg_sq, what + ": exp_avg_sq");
      EXPECT_GT(static_cast<int64_t>(composed.parameter._version()), version);
    }
  }
}

}  // namespace
}  // namespace taopd::testing
