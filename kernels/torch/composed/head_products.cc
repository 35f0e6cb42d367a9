#include "kernels/torch/composed/head_products.h"

#include <algorithm>

namespace taopd {
namespace {

// A block of this many rows of lm_head is widened at a time.
constexpr int64_t kRowsOfBlock = 8192;

// Returns a b in float32. LibTorch multiplies 16-bit numbers with a float32 result on GPUs only.
at::Tensor FloatProduct(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() == at::kFloat) return at::mm(a, b);
  if (a.is_cpu()) return at::mm(a.to(at::kFloat), b.to(at::kFloat));
  return at::mm(a, b, at::kFloat);
}

template <typename Visit>
void ForEachBlock(int64_t vocab_size, const Visit& visit) {
  for (int64_t first = 0; first < vocab_size; first += kRowsOfBlock) {
    visit(first, std::min(kRowsOfBlock, vocab_size - first));
  }
}

}  // namespace

void HeadLogitsComposed(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                        const at::Tensor& logits_CV) {
  ForEachBlock(lm_head_VH.size(0), [&](int64_t first, int64_t num) {
    logits_CV.narrow(1, first, num)
        .copy_(FloatProduct(hidden_CH, lm_head_VH.narrow(0, first, num).t()));
  });
}

at::Tensor HeadBackwardComposed(const at::Tensor& d_logits_CV, const at::Tensor& row_scale_C1,
                                const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                                const at::Tensor& d_lm_head_VH) {
  const at::ScalarType type = lm_head_VH.is_cpu() ? at::kFloat : lm_head_VH.scalar_type();
  const at::Tensor scaled_CH = (hidden_CH.to(at::kFloat) * row_scale_C1).to(type);
  const at::Tensor d_hidden_CH = at::zeros(hidden_CH.sizes(), d_logits_CV.options());
  ForEachBlock(lm_head_VH.size(0), [&](int64_t first, int64_t num) {
    const at::Tensor block_CB = d_logits_CV.narrow(1, first, num).to(type);
    d_hidden_CH.add_(FloatProduct(block_CB, lm_head_VH.narrow(0, first, num).to(type)));
    if (!d_lm_head_VH.defined()) return;
    d_lm_head_VH.narrow(0, first, num).add_(FloatProduct(block_CB.t(), scaled_CH));
  });
  return d_hidden_CH.mul_(row_scale_C1);
}

}  // namespace taopd
