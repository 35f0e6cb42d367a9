#include "kernels/torch/kernel_choice.h"

#include <atomic>
#include <iterator>
#include <utility>

namespace taopd {
namespace {

std::atomic<KernelChoice>& Choice() {
  static std::atomic<KernelChoice> choice{KernelChoice::Custom()};
  return choice;
}

constexpr std::pair<KernelKind, std::string_view> kNames[] = {
    {KernelKind::kLinear, "linear layers"},
    {KernelKind::kNorm, "norms"},
    {KernelKind::kRotation, "rotation"},
    {KernelKind::kSwiGlu, "SiLU gates"},
    {KernelKind::kPagedAttention, "paged attention"},
    {KernelKind::kPrefillAttention, "prefill attention"},
    {KernelKind::kStudentHead, "student head"},
    {KernelKind::kScoringHead, "scoring head"},
    {KernelKind::kSampling, "sampling"},
    {KernelKind::kAdamW, "AdamW"},
};
static_assert(std::size(kNames) == kNumKernelKinds);

}  // namespace

std::string_view NameOf(KernelKind kind) {
  for (const auto& [named, name] : kNames) {
    if (named == kind) return name;
  }
  return "";
}

void UseKernels(KernelChoice choice) { Choice().store(choice, std::memory_order_relaxed); }

KernelChoice KernelsInUse() { return Choice().load(std::memory_order_relaxed); }

}  // namespace taopd
