#include "kernels/torch/kernel_choice.h"

#include <atomic>

namespace taopd {
namespace {

std::atomic<KernelChoice>& Choice() {
  static std::atomic<KernelChoice> choice{KernelChoice::Custom()};
  return choice;
}

}  // namespace

std::string_view NameOf(KernelKind kind) {
  switch (kind) {
    case KernelKind::kLinear:
      return "linear layers";
    case KernelKind::kNorm:
      return "norms";
    case KernelKind::kRotation:
      return "rotation";
    case KernelKind::kSwiGlu:
      return "SiLU gates";
    case KernelKind::kPagedAttention:
      return "paged attention";
    case KernelKind::kPrefillAttention:
      return "prefill attention";
    case KernelKind::kStudentHead:
      return "student head";
    case KernelKind::kScoringHead:
      return "scoring head";
    case KernelKind::kSampling:
      return "sampling";
    case KernelKind::kAdamW:
      return "AdamW";
  }
  return "";
}

void UseKernels(KernelChoice choice) { Choice().store(choice, std::memory_order_relaxed); }

KernelChoice KernelsInUse() { return Choice().load(std::memory_order_relaxed); }

}  // namespace taopd
