#include "kernels/torch/head_gemm.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace taopd {
namespace {

constexpr int64_t kBlockBytes = 16 << 20;

// Calls f(first row, number of rows) for blocks of the vocabulary.
void ForBlocks(int64_t vocabulary_size, int64_t block_rows,
               const std::function<void(int64_t, int64_t)>& f) {
  for (int64_t begin = 0; begin < vocabulary_size; begin += block_rows) {
    f(begin, std::min(block_rows, vocabulary_size - begin));
  }
}

}  // namespace

void CheckHeadInputs(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH) {
  TORCH_CHECK(hidden_NH.defined() && hidden_NH.dim() == 2, "hidden must be [N, H]");
  TORCH_CHECK(lm_head_VH.defined() && lm_head_VH.dim() == 2, "lm_head must be [V, H]");
  TORCH_CHECK(hidden_NH.size(1) == lm_head_VH.size(1), "hidden has H = ", hidden_NH.size(1),
              " but lm_head has H = ", lm_head_VH.size(1));
  TORCH_CHECK(hidden_NH.size(1) > 0, "hidden has H = 0");
  TORCH_CHECK(lm_head_VH.size(0) > 0 && lm_head_VH.size(0) <= std::numeric_limits<int32_t>::max(),
              "lm_head has V = ", lm_head_VH.size(0), ", which must be in [1, 2^31)");
  const at::ScalarType dtype = hidden_NH.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "hidden is ", dtype,
              ", must be float32 or bfloat16");
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

HeadGemm::HeadGemm(at::Tensor lm_head_VH) : lm_head_VH_(std::move(lm_head_VH)) {
  const int64_t row_bytes = lm_head_VH_.size(1) * static_cast<int64_t>(sizeof(float));
  block_rows_ = std::clamp<int64_t>(kBlockBytes / row_bytes, 1, lm_head_VH_.size(0));
}

void HeadGemm::Logits(const at::Tensor& hidden_CH, at::Tensor logits_CV) const {
  if (lm_head_VH_.scalar_type() == at::kFloat) {
    at::mm_out(logits_CV, hidden_CH, lm_head_VH_.t());
  } else if (lm_head_VH_.is_cuda()) {
    at::mm_out(logits_CV, hidden_CH, lm_head_VH_.t(), at::kFloat);
  } else {
    const at::Tensor wide_CH = hidden_CH.to(at::kFloat);
    ForBlocks(lm_head_VH_.size(0), block_rows_, [&](int64_t begin, int64_t num) {
      at::Tensor block_Cv = logits_CV.narrow(1, begin, num);
      at::mm_out(block_Cv, wide_CH, lm_head_VH_.narrow(0, begin, num).to(at::kFloat).t());
    });
  }
}

at::Tensor HeadGemm::DHidden(const at::Tensor& d_logits_CV) const {
  if (lm_head_VH_.scalar_type() == at::kFloat) return at::mm(d_logits_CV, lm_head_VH_);
  if (lm_head_VH_.is_cuda()) return at::mm(d_logits_CV.to(at::kBFloat16), lm_head_VH_, at::kFloat);
  at::Tensor d_hidden_CH =
      at::zeros({d_logits_CV.size(0), lm_head_VH_.size(1)}, d_logits_CV.options());
  ForBlocks(lm_head_VH_.size(0), block_rows_, [&](int64_t begin, int64_t num) {
    d_hidden_CH.addmm_(d_logits_CV.narrow(1, begin, num),
                       lm_head_VH_.narrow(0, begin, num).to(at::kFloat));
  });
  return d_hidden_CH;
}

void HeadGemm::AddDLmHead(const at::Tensor& d_logits_CV, const at::Tensor& hidden_CH,
                          at::Tensor d_lm_head_VH) const {
  if (lm_head_VH_.scalar_type() == at::kFloat) {
    d_lm_head_VH.addmm_(d_logits_CV.t(), hidden_CH);
  } else if (lm_head_VH_.is_cuda()) {
    // In blocks: the product is a float32 tensor of its own before it is added.
    ForBlocks(lm_head_VH_.size(0), block_rows_, [&](int64_t begin, int64_t num) {
      const at::Tensor d_block_Cv = d_logits_CV.narrow(1, begin, num).to(at::kBFloat16);
      d_lm_head_VH.narrow(0, begin, num).add_(at::mm(d_block_Cv.t(), hidden_CH, at::kFloat));
    });
  } else {
    d_lm_head_VH.addmm_(d_logits_CV.t(), hidden_CH.to(at::kFloat));
  }
}

}  // namespace taopd
