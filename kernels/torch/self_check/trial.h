// One trial of the check at the start: a kernel and its composition on the same random inputs.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/torch/device_kernels.h"
#include "kernels/torch/kernel_choice.h"

namespace taopd {

// The shapes of a model and of its use, on which kernels are tried.
struct SelfCheckShape {
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;  // float32 or bfloat16
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  bool qk_norm = false;
  double eps = 1e-6;
  int64_t sliding_window = 0;
  int64_t max_len = 0;              // positions of the longest sequence
  int32_t top_k = 0;                // of scores and supports
  int64_t num_rows = 64;            // rows of layers and heads
  int64_t num_prefill_rows = 1024;  // of a long chunk of a prompt, at most
  bool trains = false;  // backward passes, the student's head and AdamW are tried as well
};

// The distance of an output of the kernel from that of the composition.
struct OutputError {
  std::string name;
  double error = 0;  // relative to the largest number of the output; infinite for misplaced NaN
  double allowed = 0;
};

class Trial {
 public:
  virtual ~Trial() = default;
  // Both compute from the same inputs each time, and throw c10::Error.
  virtual void RunCustom() = 0;
  virtual void RunComposed() = 0;
  // Compares the results of the last runs. Waits for the device.
  virtual std::vector<OutputError> Errors() const = 0;
};

// Named results, compared one by one.
struct NamedTensor {
  std::string name;
  at::Tensor value;
  double allowed = 0;
  // Whether errors are relative to at least 1. Set for log-probs and losses, which are differences
  // of numbers of size 1 or more.
  bool at_least_one = false;
};
OutputError Compare(const NamedTensor& custom, const at::Tensor& composed);
// Returns the errors of `custom` against `composed`, which have the same names in the same order.
std::vector<OutputError> Compare(const std::vector<NamedTensor>& custom,
                                 const std::vector<NamedTensor>& composed);

// Reproducible random numbers on a device. The same seed gives other numbers on another device.
class RandomNumbers {
 public:
  struct RotationTables {
    at::Tensor cos_T1D, sin_T1D;
  };

  RandomNumbers(at::Device device, uint64_t seed);

  at::Tensor Normal(at::IntArrayRef shape, at::ScalarType dtype, double scale = 1);
  at::Tensor Uniform(at::IntArrayRef shape, at::ScalarType dtype);  // in (0, 1)
  at::Tensor Ids(at::IntArrayRef shape, int64_t num_ids);           // int32 in [0, num_ids)
  at::Tensor NormWeight(int64_t size, at::ScalarType dtype);        // around 1
  RotationTables Rotations(int64_t num_rows, int64_t head_size, at::ScalarType dtype);

 private:
  at::TensorOptions options_;
  at::Generator generator_;
};

// The tolerances. Sums run in another order than the composition's, in float32 for both.
inline constexpr double kFloatAllowed = 5e-5;
// bfloat16 keeps 8 bits. Kernel and composition round intermediate results in different places, up
// to four times.
inline constexpr double kBfloat16Allowed = 0.02;
// Log-probs and losses are float32 for every type of weights.
inline constexpr double kLogProbAllowed = 2e-4;
inline double AllowedFor(at::ScalarType dtype) {
  return dtype == at::kFloat ? kFloatAllowed : kBfloat16Allowed;
}

// A trial that CheckKernels makes. `kernels` must outlive the trial.
struct TrialKind {
  KernelKind kind;
  std::unique_ptr<Trial> (*make)(const SelfCheckShape& shape, const DeviceKernels& kernels,
                                 uint64_t seed);
  bool only_training;
};
template <typename SomeTrial>
std::unique_ptr<Trial> NewTrial(const SelfCheckShape& shape, const DeviceKernels& kernels,
                                uint64_t seed) {
  return std::make_unique<SomeTrial>(shape, kernels, seed);
}

// The trials of each file. A new trial is a class and a row there.
std::vector<TrialKind> LayerTrials();
std::vector<TrialKind> AttentionTrials();
std::vector<TrialKind> HeadTrials();
std::vector<TrialKind> UpdateTrials();

}  // namespace taopd
