// The student's head with its loss, fused: hidden states and lm_head go in, the loss and both
// gradients come out. At most one chunk of rows of the logits [N, V] exists at a time. The
// objectives are those of kernels/include/taopd/objective/objective.h, whose gradients all have the
// form
//
//   d loss / d z_v = a * p(v) + sum_j b_j [v = s_j] + c [v = y]
//
// Runs on the CPU (student_head_cpu.h), and on CUDA in builds with TAOPD_CUDA (cuda_heads.h). A
// composition of LibTorch operations (kernels/torch/composed/student_head.h) runs instead in a
// process that does without these kernels (kernels/torch/kernel_choice.h), and for calls on CUDA
// that StudentKernelTakes rejects.
//
// Shapes: N rows (response positions), H hidden, V vocabulary, k support size. Row n's hidden state
// predicts the token sampled_ids[n]. All tensors of a call are on one device. Any thread may call
// these functions; calls that share a d_lm_head must not overlap.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/student_output.h"

namespace taopd {

// Computes the loss and both gradients in one pass, without autograd. The gradient of lm_head is
// added to d_lm_head_VH (float32, contiguous); if that is undefined, it is not computed. hidden and
// lm_head are float32 or bfloat16, on the CPU also float16.
//
// Throws c10::Error on wrong shapes, dtypes or devices, ids outside of [0, V), ids that occur twice
// in a row's support, and a temperature that is not positive; d_lm_head is then unspecified. NaN
// and infinite logits give NaN losses; the caller checks loss_N.
HeadOutput StudentHead(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                       const HeadTargets& targets, const HeadOptions& options,
                       at::Tensor d_lm_head_VH);

// StudentHead as an autograd node: returns sum_n w_n loss_n, a float32 scalar. Its backward pass
// returns the gradients that the forward pass computed, lm_head's in lm_head's dtype, and throws
// if it runs a second time. *output is filled in as by StudentHead; it may be null.
//
// If lm_head has a gradient target (kernels/torch/gemm/gradient_target.h), the forward pass already
// adds the gradient to it, and a second tensor of the head's size never exists. The loss's backward
// pass must then follow, and begin with 1; on the CPU, one that begins with another number throws.
at::Tensor StudentHeadLoss(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                           const HeadTargets& targets, const HeadOptions& options,
                           HeadOutput* output);

}  // namespace taopd
