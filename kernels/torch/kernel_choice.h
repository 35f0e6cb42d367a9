// A process's choice among the project's own kernels. Every kind of kernel has a composition of
// LibTorch operations behind the same function (kernels/torch/composed), which runs on every
// device; the choice says for each kind which of the two computes.
//
// The choice is one value of the process. A program sets it once, before it makes a model, and
// every function that has kernels of its own looks at it where it looks at the device. The contents
// of KV pages and packed weights depend on it, so it must not change while a model exists.
#pragma once

#include <cstdint>
#include <string_view>

namespace taopd {

// CUDA has kernels for all kinds but kLinear. A CPU has kernels for all of them, and uses either
// all or none.
enum class KernelKind : uint32_t {
  // Products with weights and their packed copies, and what is built on them: attention in training
  // and the gradient of the embedding.
  kLinear,
  kNorm,
  kRotation,  // norm and rotation of queries and keys
  kSwiGlu,
  kPagedAttention,    // with the append of keys and values
  kPrefillAttention,  // of long chunks of prompts (CudaPagedAttention::IsLongChunk)
  kStudentHead,
  kScoringHead,
  kSampling,  // of rows that need a temperature only
  kAdamW,
};
inline constexpr uint32_t kNumKernelKinds = 10;

// Returns the name for logs and metrics, such as "student head".
std::string_view NameOf(KernelKind kind);

class KernelChoice {
 public:
  // The project's own kernels wherever there are some.
  static KernelChoice Custom() { return KernelChoice((1u << kNumKernelKinds) - 1); }
  // No kernel of kernels/cpu or kernels/cuda.
  static KernelChoice Composed() { return KernelChoice(0); }

  bool IsCustom(KernelKind kind) const { return (custom_ & BitOf(kind)) != 0; }
  KernelChoice Without(KernelKind kind) const { return KernelChoice(custom_ & ~BitOf(kind)); }
  bool operator==(const KernelChoice&) const = default;

 private:
  explicit KernelChoice(uint32_t custom) : custom_(custom) {}
  static uint32_t BitOf(KernelKind kind) { return 1u << static_cast<uint32_t>(kind); }

  uint32_t custom_;
};

// Sets the choice of the process; the default is KernelChoice::Custom(). REQUIRES: no model exists.
void UseKernels(KernelChoice choice);
// Thread-safe.
KernelChoice KernelsInUse();
inline bool UsesCustom(KernelKind kind) { return KernelsInUse().IsCustom(kind); }

}  // namespace taopd
