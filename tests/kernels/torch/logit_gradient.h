// A gradient of logits from a matrix, in the form in which a chunk of the student's rows leaves it
// (kernels/cpu/head/logit_gradient.h), for tests of the products.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/gemm/head_gemm_cpu.h"

namespace taopd::testing {

struct BlockedGradient {
  // Row n has the scale 0.5 - n and block b the factor 2^(-(b + n) % 5), which the products must
  // undo. `dtype` is that of the weights.
  BlockedGradient(const at::Tensor& d_logits_CV, at::ScalarType dtype) {
    const int64_t num_rows = d_logits_CV.size(0);
    const int64_t vocab_size = d_logits_CV.size(1);
    const int64_t num_blocks = (vocab_size + kVocabularyBlock - 1) / kVocabularyBlock;
    row_scale_C = 0.5 - at::arange(num_rows, at::kFloat);
    factors_BC = at::exp2(
        -(at::arange(num_blocks, at::kFloat).unsqueeze(1) + at::arange(num_rows, at::kFloat))
             .remainder(5));
    const at::Tensor factors_VC =
        factors_BC.repeat_interleave(kVocabularyBlock, 0).narrow(0, 0, vocab_size);
    exps_VC = (d_logits_CV.t() / row_scale_C / factors_VC).to(dtype).contiguous();
    // The numbers after rounding.
    d_logits_exact_CV =
        (exps_VC.to(at::kDouble) * factors_VC * row_scale_C.to(at::kDouble)).t().contiguous();
    view.dtype = dtype == at::kBFloat16 ? DataType::kBFloat16 : DataType::kFloat32;
    view.exps_VC = exps_VC.const_data_ptr();
    view.factors_BC = factors_BC.const_data_ptr<float>();
    view.row_scale_C = row_scale_C.const_data_ptr<float>();
    view.num_rows = num_rows;
    view.vocab_size = vocab_size;
    view.block_size = kVocabularyBlock;
  }

  at::Tensor exps_VC, factors_BC, row_scale_C, d_logits_exact_CV;
  cpu::LogitGradient view;
};

}  // namespace taopd::testing
