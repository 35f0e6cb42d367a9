// The check of kernels at the start, on the emulated run-time: it trusts the kernels of
// kernels/cuda, and finds each planted fault.
#include "kernels/torch/self_check/self_check.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Outcome = KernelVerdict::Outcome;

SelfCheckShape SmallModel(at::ScalarType dtype) {
  SelfCheckShape shape;
  shape.dtype = dtype;
  shape.hidden_size = 32;
  shape.intermediate_size = 48;
  shape.vocab_size = 301;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_size = 16;
  shape.qk_norm = true;
  shape.max_len = 300;  // two partitions
  shape.top_k = 8;
  shape.num_rows = 6;
  shape.num_prefill_rows = 40;
  shape.trains = true;
  return shape;
}

// The emulated kernels are slow, so the tests say how long a run takes.
SelfCheckOptions WithoutTiming() {
  SelfCheckOptions options;
  options.time = [](const std::function<void()>&) { return 1.0; };
  return options;
}

std::string TextOf(const std::vector<KernelVerdict>& verdicts) {
  std::string text;
  for (const KernelVerdict& verdict : verdicts) text += Describe(verdict) + "\n";
  return text;
}

// Lets a kernel that hangs return, so that its thread ends before the program.
class Gate {
 public:
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    opened_.wait(lock, [this] { return open_; });
    ++num_passed_;
    passed_.notify_all();
  }
  void OpenAndWaitForOne() {
    std::unique_lock<std::mutex> lock(mutex_);
    open_ = true;
    opened_.notify_all();
    passed_.wait(lock, [this] { return num_passed_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_, passed_;
  bool open_ = false;
  int num_passed_ = 0;
};
Gate kernel_gate, composition_gate;

// The first test, so that the kernel's thread has ended long before the program does.
TEST(SelfCheck, AKernelThatHangsEndsTheCheckByName) {
  DeviceKernels kernels = LinkedKernels();
  kernels.paged_attention = [](const PlainPagedAttention&, const DeviceContext&) {
    kernel_gate.Pass();
    return std::string("let go");
  };
  SelfCheckOptions options = WithoutTiming();
  options.limit_s = 5;
  const auto verdicts = CheckKernels(SmallModel(at::kFloat), kernels, options);
  ASSERT_EQ(verdicts.size(), 4u) << TextOf(verdicts);
  EXPECT_EQ(verdicts.back().outcome, Outcome::kHangs);
  EXPECT_EQ(Describe(verdicts.back()),
            "paged attention: the trial hangs: after 5 s it was still in the kernel");
  EXPECT_FALSE(TrustedKernels(verdicts).IsCustom(KernelKind::kPagedAttention));
  kernel_gate.OpenAndWaitForOne();
}

// The kernel is timed before its composition.
TEST(SelfCheck, ACompositionThatHangsIsNotChargedToTheKernel) {
  SelfCheckOptions options;
  options.limit_s = 5;
  options.time = [num_timed = 0](const std::function<void()>&) mutable {
    if (++num_timed == 2) composition_gate.Pass();
    return 1.0;
  };
  const auto verdicts = CheckKernels(SmallModel(at::kFloat), LinkedKernels(), options);
  ASSERT_EQ(verdicts.size(), 1u) << TextOf(verdicts);
  EXPECT_EQ(Describe(verdicts.back()),
            "norms: the trial hangs: after 5 s it was still in the composition");
  composition_gate.OpenAndWaitForOne();
}

TEST(SelfCheck, TrustsTheKernels) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    SelfCheckShape shape = SmallModel(dtype);
    for (const int64_t sliding_window : {0, 40}) {
      shape.sliding_window = sliding_window;
      shape.qk_norm = sliding_window == 0;
      // The kernel takes no metrics with 1100, nor does training ask it.
      shape.top_k = sliding_window == 0 ? 8 : 1100;
      shape.vocab_size = shape.top_k + 293;
      const auto verdicts = CheckKernels(shape, LinkedKernels(), WithoutTiming());
      EXPECT_EQ(verdicts.size(), 9u);
      for (const KernelVerdict& verdict : verdicts) {
        EXPECT_EQ(verdict.outcome, Outcome::kTrusted) << Describe(verdict);
      }
      EXPECT_TRUE(TrustedKernels(verdicts) == KernelChoice::Custom());
      EXPECT_THAT(TextOf(verdicts), HasSubstr("student head: custom, 1.0x, error "));
    }
  }
}

TEST(SelfCheck, AProcessThatOnlyServesChecksNoTraining) {
  SelfCheckShape shape = SmallModel(at::kFloat);
  shape.trains = false;
  DeviceKernels kernels = LinkedKernels();
  kernels.rms_norm_backward = nullptr;  // a call would end the test
  const auto verdicts = CheckKernels(shape, kernels, WithoutTiming());
  EXPECT_EQ(verdicts.size(), 7u) << TextOf(verdicts);
  EXPECT_TRUE(TrustedKernels(verdicts) == KernelChoice::Custom()) << TextOf(verdicts);
}

// ---- Planted faults: each runs the kernel and then spoils one result ----

float* Floats(void* values) { return static_cast<float*>(values); }

struct Fault {
  KernelKind kind;
  const char* what;
  void (*plant)(DeviceKernels* kernels);
};

const Fault kFaults[] = {
    {KernelKind::kNorm, "a sum that misses one element",
     [](DeviceKernels* kernels) {
       kernels->rms_norm_forward = [](const RmsNormForward& p, const DeviceContext& c) {
         RmsNormForward fewer = p;
         const std::string error = RmsNormForwardCuda(fewer, c);
         // Row 2 is normalized as if its largest element did not count.
         const float* const x = static_cast<const float*>(p.sum_NH) + 2 * p.size;
         double all = 0, largest = 0;
         for (int64_t i = 0; i < p.size; ++i) {
           all += static_cast<double>(x[i]) * x[i];
           largest = std::max(largest, static_cast<double>(x[i]) * x[i]);
         }
         const auto factor = static_cast<float>(std::sqrt(all / (all - largest)));
         for (int64_t i = 0; i < p.size; ++i) Floats(p.normed_NH)[2 * p.size + i] *= factor;
         return error;
       };
     }},
    {KernelKind::kNorm, "a gradient of the weight that misses a partial sum",
     [](DeviceKernels* kernels) {
       kernels->rms_norm_backward = [](const RmsNormBackward& p, const DeviceContext& c) {
         RmsNormBackward fewer = p;
         const std::string error = RmsNormBackwardCuda(p, c);
         std::vector<float> d_x(static_cast<size_t>(p.num_rows * p.size));
         fewer.num_rows = p.num_rows - 1;
         fewer.d_x_NH = d_x.data();
         RmsNormBackwardCuda(fewer, c);
         return error;
       };
     }},
    {KernelKind::kRotation, "two lanes that are exchanged",
     [](DeviceKernels* kernels) {
       kernels->heads_forward = [](const HeadsForward& p, const DeviceContext& c) {
         const std::string error = HeadsForwardCuda(p, c);
         std::swap(Floats(p.out_TAD)[3], Floats(p.out_TAD)[4]);
         return error;
       };
     }},
    {KernelKind::kRotation, "a rotation by the wrong sign in the backward pass",
     [](DeviceKernels* kernels) {
       kernels->heads_backward = [](const HeadsBackward& p, const DeviceContext& c) {
         HeadsBackward other = p;
         std::swap(other.cos_TD, other.sin_TD);
         return HeadsBackwardCuda(other, c);
       };
     }},
    {KernelKind::kSwiGlu, "a NaN",
     [](DeviceKernels* kernels) {
       kernels->swiglu_forward = [](const SwiGluForward& p, const DeviceContext& c) {
         const std::string error = SwiGluForwardCuda(p, c);
         Floats(p.y)[p.size - 1] = std::nanf("");
         return error;
       };
     }},
    {KernelKind::kSwiGlu, "a gradient that was not written",
     [](DeviceKernels* kernels) {
       kernels->swiglu_backward = [](const SwiGluBackward& p, const DeviceContext& c) {
         const std::string error = SwiGluBackwardCuda(p, c);
         Floats(p.d_up)[7] = 0;
         Floats(p.d_gate)[7] = 0;
         return error;
       };
     }},
    {KernelKind::kPagedAttention, "keys that go to the wrong place",
     [](DeviceKernels* kernels) {
       kernels->rotate_and_append = [](const RotateAndAppend& p, const DeviceContext& c) {
         RotateAndAppend other = p;
         std::vector<int32_t> positions(p.positions_T, p.positions_T + p.num_rows);
         --positions[0];
         other.positions_T = positions.data();
         return RotateAndAppendCuda(other, c);
       };
     }},
    {KernelKind::kPagedAttention, "a scale that is off by one part in a hundred",
     [](DeviceKernels* kernels) {
       kernels->paged_attention = [](const PlainPagedAttention& p, const DeviceContext& c) {
         PlainPagedAttention other = p;
         other.scale *= 1.01f;
         return PagedAttentionCuda(other, c);
       };
     }},
    {KernelKind::kPrefillAttention, "a window that hides keys from the rows of a chunk",
     [](DeviceKernels* kernels) {
       kernels->paged_attention = [](const PlainPagedAttention& p, const DeviceContext& c) {
         PlainPagedAttention other = p;
         if (p.counts.num_split == 0) other.sliding_window = 100;
         return PagedAttentionCuda(other, c);
       };
     }},
    {KernelKind::kStudentHead, "a loss that is off",
     [](DeviceKernels* kernels) {
       kernels->fused_head = [](const FusedHeadProblem& p, const FusedHeadResult& r,
                                const DeviceContext& c) {
         const std::string error = FusedHead(p, r, c);
         if (p.top_k_metrics) r.loss_N[p.num_rows - 1] += 0.01f;  // training asks for them
         return error;
       };
     }},
    {KernelKind::kStudentHead, "a row whose gradient goes to the neighboring token",
     [](DeviceKernels* kernels) {
       kernels->fused_head = [](const FusedHeadProblem& p, const FusedHeadResult& r,
                                const DeviceContext& c) {
         const std::string error = FusedHead(p, r, c);
         const int64_t at = p.targets.support_ids_Nk[p.targets.k];
         const int64_t next = (at + 1) % p.vocab_size;
         for (int64_t h = 0; h < p.hidden_size; ++h) {
           std::swap(r.d_lm_head_VH[at * p.hidden_size + h],
                     r.d_lm_head_VH[next * p.hidden_size + h]);
         }
         return error;
       };
     }},
    {KernelKind::kScoringHead, "two places of the top-k that are exchanged",
     [](DeviceKernels* kernels) {
       kernels->fused_scoring = [](const FusedScoringProblem& p, const FusedScoringResult& r,
                                   const DeviceContext& c) {
         const std::string error = FusedScoring(p, r, c);
         std::swap(r.ids_Nk[0], r.ids_Nk[p.top_k - 1]);
         return error;
       };
     }},
    {KernelKind::kScoringHead, "a rank that is one too large",
     [](DeviceKernels* kernels) {
       kernels->fused_scoring = [](const FusedScoringProblem& p, const FusedScoringResult& r,
                                   const DeviceContext& c) {
         const std::string error = FusedScoring(p, r, c);
         ++r.sampled_ranks_N[1];
         return error;
       };
     }},
    {KernelKind::kSampling, "the token of the neighboring row",
     [](DeviceKernels* kernels) {
       kernels->sample_rows = [](const SampleRows& p, const DeviceContext& c) {
         const std::string error = SampleRowsCuda(p, c);
         std::swap(p.ids_S[1], p.ids_S[2]);
         return error;
       };
     }},
    {KernelKind::kAdamW, "a block that is not updated",
     [](DeviceKernels* kernels) {
       kernels->adamw = [](const AdamWSettings& settings, const AdamWTensor* tensors,
                           int32_t num_tensors, int64_t num_blocks, const DeviceContext& c) {
         return AdamWCuda(settings, tensors, num_tensors, num_blocks - 1, c);
       };
     }},
    {KernelKind::kAdamW, "a sum of squares without its last block",
     [](DeviceKernels* kernels) {
       kernels->sums_of_squares = [](const AdamWTensor* tensors, int32_t num_tensors,
                                     int64_t num_blocks, double* sums, const DeviceContext& c) {
         const std::string error = SumsOfSquaresCuda(tensors, num_tensors, num_blocks, sums, c);
         sums[num_blocks - 1] = 0;
         return error;
       };
     }},
};

// Each run has every fourth fault, which belong to different kinds.
TEST(SelfCheck, FindsEachPlantedFaultAndNothingElse) {
  constexpr size_t kRuns = 4;
  for (size_t run = 0; run < kRuns; ++run) {
    DeviceKernels kernels = LinkedKernels();
    KernelChoice trusted = KernelChoice::Custom();
    std::string what;
    for (size_t i = run; i < std::size(kFaults); i += kRuns) {
      const Fault& fault = kFaults[i];
      ASSERT_TRUE(trusted.IsCustom(fault.kind)) << fault.what;
      fault.plant(&kernels);
      trusted = trusted.Without(fault.kind);
      // Long chunks run the same kernels as other rows.
      if (fault.kind == KernelKind::kPagedAttention) {
        trusted = trusted.Without(KernelKind::kPrefillAttention);
      }
      what += std::string(fault.what) + "; ";
    }
    const auto verdicts = CheckKernels(SmallModel(at::kFloat), kernels, WithoutTiming());
    EXPECT_EQ(verdicts.size(), 9u);
    for (const KernelVerdict& verdict : verdicts) {
      EXPECT_EQ(verdict.outcome,
                trusted.IsCustom(verdict.kind) ? Outcome::kTrusted : Outcome::kWrong)
          << what << Describe(verdict);
    }
    EXPECT_TRUE(TrustedKernels(verdicts) == trusted) << what;
    EXPECT_THAT(TextOf(verdicts), HasSubstr("composed, because the kernel is wrong: error "));
  }
}

TEST(SelfCheck, AKernelThatFailsIsLeftOut) {
  DeviceKernels kernels = LinkedKernels();
  kernels.fused_scoring = [](const FusedScoringProblem&, const FusedScoringResult&,
                             const DeviceContext&) { return std::string("no kernel image"); };
  const auto verdicts = CheckKernels(SmallModel(at::kFloat), kernels, WithoutTiming());
  EXPECT_EQ(verdicts.size(), 9u);
  EXPECT_TRUE(TrustedKernels(verdicts) == KernelChoice::Custom().Without(KernelKind::kScoringHead));
  EXPECT_THAT(TextOf(verdicts), HasSubstr("scoring head: composed, because the kernel failed: "
                                          "no kernel image"));
}

TEST(SelfCheck, ASlowerKernelIsLeftOut) {
  int num_timed = 0;
  SelfCheckOptions options;
  options.time = [&](const std::function<void()>&) {
    // The kernel is timed before its composition; the second one of the list is slower.
    ++num_timed;
    return num_timed == 3 ? 1.5 : 1.0;
  };
  const auto verdicts = CheckKernels(SmallModel(at::kFloat), LinkedKernels(), options);
  EXPECT_TRUE(TrustedKernels(verdicts) == KernelChoice::Custom().Without(KernelKind::kRotation));
  EXPECT_THAT(TextOf(verdicts),
              HasSubstr("rotation: composed, because the kernel is slower: 0.67x"));
}

// The kernel is timed before its composition.
TEST(SelfCheck, AFailureWhileATimeIsMeasuredBelongsToWhatRan) {
  for (const int failing : {1, 2}) {
    int num_timed = 0;
    SelfCheckOptions options;
    options.time = [&](const std::function<void()>&) {
      TORCH_CHECK(++num_timed != failing, "no memory");
      return 1.0;
    };
    const auto verdicts = CheckKernels(SmallModel(at::kFloat), LinkedKernels(), options);
    EXPECT_EQ(verdicts.size(), 9u);
    EXPECT_EQ(Describe(verdicts.front()),
              failing == 1
                  ? "norms: composed, because the kernel failed: no memory"
                  : "norms: custom, not checked, because the composition failed: no memory");
    EXPECT_EQ(verdicts.front().IsUsed(), failing == 2);
  }
}

// A composition that cannot run says nothing about the kernel.
TEST(SelfCheck, WithoutAComparisonTheKernelIsUsed) {
  SelfCheckShape shape = SmallModel(at::kFloat);
  shape.vocab_size = int64_t{1} << 40;  // no memory
  const auto verdicts = CheckKernels(shape, LinkedKernels(), WithoutTiming());
  EXPECT_TRUE(TrustedKernels(verdicts) == KernelChoice::Custom()) << TextOf(verdicts);
  EXPECT_THAT(TextOf(verdicts), HasSubstr("scoring head: custom, not checked, because"));
}

}  // namespace
}  // namespace taopd::testing
