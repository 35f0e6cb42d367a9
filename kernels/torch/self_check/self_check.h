// The check of the custom device kernels at the start of a program. Each of them is compared with
// its composition of LibTorch operations (kernels/torch/composed) on random inputs of the model's
// own shapes, on the device that will compute: values first, then time. A kernel that computes
// something else, fails, or is slower than the composition is not used by the process; the
// composition takes its place.
//
// The code is the same for kernels/cuda on CUDA tensors and, in tests, for the emulated run-time on
// CPU tensors. Time and memory: each kernel runs a few times on 64 rows; the largest inputs are one
// lm_head with its gradient in training, and the pages of two sequences of the longest length.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/torch/device_kernels.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/self_check/trial.h"

namespace taopd {

struct SelfCheckOptions {
  // A trial (inputs, composition, kernel, their times) that has not ended after this time hangs.
  double limit_s = 60;
  uint64_t seed = 1;
  // Returns the seconds that `run` takes until the device is done. If empty, it is measured.
  std::function<double(const std::function<void()>& run)> time;
};

struct KernelVerdict {
  enum class Outcome {
    kTrusted,
    kWrong,       // an output is further from the composition's than allowed
    kFailed,      // it returned or threw an error
    kSlower,      // than the composition, by more than kSlowerBy
    kHangs,       // the trial did not end in time; its thread still runs
    kNotChecked,  // the composition failed, perhaps for lack of memory; the kernel is used
  };

  KernelKind kind = KernelKind::kNorm;
  Outcome outcome = Outcome::kTrusted;
  // The output whose error is the largest multiple of what is allowed.
  OutputError worst;
  double speedup = 0;   // time of the composition / time of the kernel; 0: not measured
  std::string problem;  // of a failure
  // The device refuses all work since this kernel ran. No later kernel was checked.
  bool device_is_lost = false;

  bool IsUsed() const { return outcome == Outcome::kTrusted || outcome == Outcome::kNotChecked; }
};

// A kernel may take this many times as long as its composition: less is within the noise.
inline constexpr double kSlowerBy = 1.1;

// Checks the kernels that a model of this shape uses, and returns a verdict for each, in the order
// of KernelKind. Stops after a kernel that hangs or with which the device is lost.
std::vector<KernelVerdict> CheckKernels(const SelfCheckShape& shape, const DeviceKernels& kernels,
                                        const SelfCheckOptions& options);

// Returns one line for the log, such as
// "student head: custom, 3.1x, error 2.0e-03 of 2.0e-02 allowed (d hidden)".
std::string Describe(const KernelVerdict& verdict);

// Returns all kernels except those whose verdict is not IsUsed().
KernelChoice TrustedKernels(const std::vector<KernelVerdict>& verdicts);

}  // namespace taopd
