// The student's head with its loss, fused: hidden states and lm_head go in, the loss and both
// gradients come out. At most one chunk of rows of the logits [N, V] exists at a time. The
// objectives are those of kernels/include/taopd/objective/objective.h, whose gradients all have the
// form
//
//   d loss / d z_v = a * p(v) + sum_j b_j [v = s_j] + c [v = y]
//
// Runs on the CPU (student_head_cpu.h), and on CUDA in builds with TAOPD_CUDA (cuda_heads.h). A
// process that does without these kernels (kernels/torch/kernel_choice.h) uses a composition of
// LibTorch operations on both (kernels/torch/composed/student_head.h).
//
// Shapes: N rows (response positions), H hidden, V vocabulary, k support size. Row n's hidden state
// predicts the token sampled_ids[n]. All tensors of a call are on one device. Any thread may call
// these functions; calls that share a d_lm_head must not overlap.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

// The tensors of StudentTargets (taopd/head/student_targets.h), which says what each of them means
// and which may be undefined. The numbers are float32 and the ids int32.
struct HeadTargets {
  // An objective that needs the full vocabulary needs k = V.
  at::Tensor support_ids_Nk;
  at::Tensor teacher_log_probs_Nk;
  at::Tensor teacher_log_tail_N;
  at::Tensor sampled_ids_N;
  at::Tensor teacher_sampled_log_probs_N;
  at::Tensor teacher_entropy_N;
  at::Tensor behavior_log_probs_N;
  at::Tensor advantages_N;
  at::Tensor row_weights_N;

  // Returns all of the above, defined or not. Each has N rows.
  std::array<at::Tensor*, 9> Tensors() {
    return {&support_ids_Nk,
            &teacher_log_probs_Nk,
            &teacher_log_tail_N,
            &sampled_ids_N,
            &teacher_sampled_log_probs_N,
            &teacher_entropy_N,
            &behavior_log_probs_N,
            &advantages_N,
            &row_weights_N};
  }
};

struct HeadOptions {
  // One objective, or a linear combination of several.
  ObjectiveTerms objective;
  // Logits are divided by this before the softmax; > 0.
  double temperature = 1.0;
  // Whether to fill in kTopKOverlap and kTopKOverlapAdvantage.
  bool top_k_metrics = false;
  // The memory that a chunk may take besides the inputs and outputs. At least one row is computed
  // at a time, even if it takes more.
  int64_t workspace_bytes = 256 << 20;
};

struct HeadOutput {
  // float32, not multiplied by the rows' weights, on the device of hidden.
  at::Tensor loss_N;
  // float32 [N, kNumHeadMetrics] on the CPU; the columns of taopd/objective/row_metrics.h.
  at::Tensor metrics_NM;
  // d (sum_n w_n loss_n) / d hidden, in hidden's dtype and on its device.
  at::Tensor d_hidden_NH;
};

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

// StudentHead as an autograd node: returns sum_n w_n loss_n, a float32 scalar. Its backward pass,
// which may run only once, returns the gradients that the forward pass computed, lm_head's in
// lm_head's dtype. *output is filled in as by StudentHead; it may be null.
//
// If lm_head has a gradient target (kernels/torch/gemm/gradient_target.h), the forward pass already
// adds the gradient to it, and a second tensor of the head's size never exists. The loss's backward
// pass must then follow, exactly once, and begin with 1; on the CPU, any other one throws.
at::Tensor StudentHeadLoss(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                           const HeadTargets& targets, const HeadOptions& options,
                           HeadOutput* output);

}  // namespace taopd
