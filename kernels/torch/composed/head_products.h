// The matrix products of a language-model head as LibTorch operations, for tensors of any device.
// Results are float32 with float32 sums, whatever the type of the inputs. lm_head is processed in
// blocks of the vocabulary, so that no copy of it in another type exists as a whole.
//
// Shapes: C rows of a chunk, H hidden, V vocabulary. All tensors of a call are on one device.
#pragma once

#include <ATen/ATen.h>

namespace taopd {

// Writes logits = hidden lm_head^T, float32; the elements of a row of logits must be adjacent.
// hidden and lm_head have one type: float32, bfloat16 or float16.
void HeadLogitsComposed(const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                        const at::Tensor& logits_CV);

// Returns d_hidden = s d_logits lm_head, float32, and adds (s d_logits)^T hidden to d_lm_head
// (float32, contiguous; may be undefined), where s is a factor of each row. d_logits is float32.
// Except on a CPU, d_logits and s hidden are rounded to the type of lm_head before they are
// multiplied, as in the CUDA kernels.
at::Tensor HeadBackwardComposed(const at::Tensor& d_logits_CV, const at::Tensor& row_scale_C1,
                                const at::Tensor& hidden_CH, const at::Tensor& lm_head_VH,
                                const at::Tensor& d_lm_head_VH);

}  // namespace taopd
