#include "kernels/torch/head/head_gemm.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/torch/gemm/head_gemm_cpu.h"

namespace taopd {

void CheckHeadInputs(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH) {
  TORCH_CHECK(hidden_NH.defined() && hidden_NH.dim() == 2, "hidden must be [N, H]");
  TORCH_CHECK(lm_head_VH.defined() && lm_head_VH.dim() == 2, "lm_head must be [V, H]");
  TORCH_CHECK(hidden_NH.size(1) == lm_head_VH.size(1), "hidden has H = ", hidden_NH.size(1),
              " but lm_head has H = ", lm_head_VH.size(1));
  TORCH_CHECK(hidden_NH.size(1) > 0, "hidden has H = 0");
  TORCH_CHECK(lm_head_VH.size(0) > 0 && lm_head_VH.size(0) <= std::numeric_limits<int32_t>::max(),
              "lm_head has V = ", lm_head_VH.size(0), ", which must be in [1, 2^31)");
  const at::ScalarType dtype = hidden_NH.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf, "hidden is ",
              dtype, ", must be float32, bfloat16 or float16");
  TORCH_CHECK(lm_head_VH.scalar_type() == dtype, "lm_head is ", lm_head_VH.scalar_type(),
              " but hidden is ", dtype);
  TORCH_CHECK(lm_head_VH.device() == hidden_NH.device(), "lm_head is on ", lm_head_VH.device(),
              " but hidden is on ", hidden_NH.device());
}

int64_t RowsPerChunk(int64_t workspace_bytes, int64_t vocabulary_size, int64_t num_buffers) {
  const int64_t row_bytes = vocabulary_size * num_buffers * static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, workspace_bytes / row_bytes);
}

int64_t RowsPerTask(int64_t vocabulary_size) {
  constexpr int64_t kElementsPerTask = 32768;  // about 20 microseconds of one core
  return std::max<int64_t>(1, kElementsPerTask / vocabulary_size);
}

// float16 on the CPU is for reading such models, not for speed: the head is widened as a whole.
HeadGemm::HeadGemm(at::Tensor lm_head_VH)
    : lm_head_VH_(lm_head_VH.is_cpu() && lm_head_VH.scalar_type() == at::kHalf
                      ? lm_head_VH.to(at::kFloat)
                      : std::move(lm_head_VH)) {}

void HeadGemm::Logits(const at::Tensor& hidden_CH, at::Tensor logits_CV) const {
  if (lm_head_VH_.is_cpu()) {
    CpuHeadLogits(hidden_CH.to(lm_head_VH_.scalar_type()), lm_head_VH_, logits_CV);
  } else if (lm_head_VH_.scalar_type() == at::kFloat) {
    at::mm_out(logits_CV, hidden_CH, lm_head_VH_.t());
  } else {
    at::mm_out(logits_CV, hidden_CH, lm_head_VH_.t(), at::kFloat);
  }
}

}  // namespace taopd
