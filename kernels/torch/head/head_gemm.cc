#include "kernels/torch/head/head_gemm.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/torch/composed/head_products.h"
#include "kernels/torch/gemm/head_gemm_cpu.h"
#include "kernels/torch/kernel_choice.h"

namespace taopd {
namespace {

// On the CPU, a loop on this thread takes less time than LibTorch takes to wake another one.
std::pair<int32_t, int32_t> SmallestAndLargest(const at::Tensor& ids) {
  if (!ids.is_cpu() || !ids.is_contiguous()) {
    const auto [smallest, largest] = at::aminmax(ids);
    return {smallest.item<int32_t>(), largest.item<int32_t>()};
  }
  const int32_t* const data = ids.const_data_ptr<int32_t>();
  int32_t smallest = data[0], largest = data[0];
  for (int64_t i = 1; i < ids.numel(); ++i) {
    smallest = std::min(smallest, data[i]);
    largest = std::max(largest, data[i]);
  }
  return {smallest, largest};
}

}  // namespace

int64_t HeadMatrix::vocab_size() const {
  return packed != nullptr ? packed->num_outputs() : lm_head_VH.size(0);
}
int64_t HeadMatrix::hidden_size() const {
  return packed != nullptr ? packed->num_inputs() : lm_head_VH.size(1);
}
at::ScalarType HeadMatrix::dtype() const {
  return packed != nullptr ? packed->dtype() : lm_head_VH.scalar_type();
}

void CheckHeadInputs(const at::Tensor& hidden_NH, const HeadMatrix& head) {
  TORCH_CHECK(hidden_NH.defined() && hidden_NH.dim() == 2, "hidden must be [N, H]");
  TORCH_CHECK(head.packed != nullptr || (head.lm_head_VH.defined() && head.lm_head_VH.dim() == 2),
              "lm_head must be [V, H]");
  TORCH_CHECK(hidden_NH.size(1) == head.hidden_size(), "hidden has H = ", hidden_NH.size(1),
              " but lm_head has H = ", head.hidden_size());
  TORCH_CHECK(hidden_NH.size(1) > 0, "hidden has H = 0");
  TORCH_CHECK(head.vocab_size() > 0 && head.vocab_size() <= std::numeric_limits<int32_t>::max(),
              "lm_head has V = ", head.vocab_size(), ", which must be in [1, 2^31)");
  const at::ScalarType dtype = hidden_NH.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "hidden is ",
              dtype, ", must be float32, bfloat16 or float16");
  TORCH_CHECK(head.dtype() == dtype, "lm_head is ", head.dtype(), " but hidden is ", dtype);
  TORCH_CHECK(head.device() == hidden_NH.device(), "lm_head is on ", head.device(),
              " but hidden is on ", hidden_NH.device());
}

void CheckIds(const at::Tensor& ids, const char* name, int32_t lowest, int64_t vocab_size) {
  if (ids.numel() == 0) return;
  const auto [low, high] = SmallestAndLargest(ids);
  TORCH_CHECK(low >= lowest && high < vocab_size, name, " holds ids in [", low, ", ", high,
              "], outside of the vocabulary [0, ", vocab_size, ")");
}

int64_t RowsPerTask(int64_t vocab_size) {
  constexpr int64_t kElementsPerTask = 32768;  // about 20 microseconds of one core
  return std::max<int64_t>(1, kElementsPerTask / vocab_size);
}

// On the CPU, float16 models are supported but not fast: the whole head is converted to float32.
HeadGemm::HeadGemm(HeadMatrix head) : head_(std::move(head)) {
  if (head_.packed == nullptr && UsesCpuKernels() && head_.lm_head_VH.scalar_type() == at::kHalf) {
    head_.lm_head_VH = head_.lm_head_VH.to(at::kFloat);
  }
}

void HeadGemm::Logits(const at::Tensor& hidden_CH, at::Tensor logits_CV) const {
  const at::Tensor& lm_head_VH = head_.lm_head_VH;
  if (head_.packed != nullptr) {
    head_.packed->MultiplyInto(hidden_CH, logits_CV);
  } else if (UsesCpuKernels()) {
    CpuHeadLogits(hidden_CH.to(lm_head_VH.scalar_type()), lm_head_VH, logits_CV);
  } else {
    HeadLogitsComposed(hidden_CH, lm_head_VH, logits_CV);
  }
}

bool HeadGemm::UsesCpuKernels() const {
  return head_.lm_head_VH.is_cpu() && UsesCustom(KernelKind::kScoringHead);
}

}  // namespace taopd
