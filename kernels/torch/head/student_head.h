// The student's head with its loss, fused: hidden states and lm_head in, loss and gradients out,
// without ever holding [N, V] logits beyond one chunk of rows. The contract of every objective is
// in kernels/include/taopd/objective/objective.h:
//
//   d loss / d z_v = a * p(v) + sum_j b_j [v = s_j] + c [v = y]
//
// Shapes: N rows (response positions), H hidden, V vocabulary, k support size. Row n's hidden state
// predicts the token sampled_ids[n]. All tensors on one device.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <vector>

#include "taopd/objective/objective.h"
#include "taopd/objective/row_metrics.h"

namespace taopd {

// A tensor that the objective does not need (its needs in taopd/objective/objective.h) may be
// undefined; metrics that would read it are then NaN. sampled_ids_N and row_weights_N are always
// needed.
struct HeadTargets {
  // int32, distinct within a row, each in [0, V); -1 at the end of a row pads a support that is
  // smaller than k. An objective that needs the full vocabulary needs k = V.
  at::Tensor support_ids_Nk;
  at::Tensor teacher_log_probs_Nk;  // float32, log q on the support; -inf allowed
  // float32, log of q outside the support; -inf allowed. Undefined, or NaN in a row: made from the
  // support's mass with the clamp of the paper's listing, and counted (kTailWasDerived).
  at::Tensor teacher_log_tail_N;
  at::Tensor sampled_ids_N;                // int32, y
  at::Tensor teacher_sampled_log_probs_N;  // float32, log q(y)
  at::Tensor teacher_entropy_N;            // float32, nats, of the teacher's whole distribution
  at::Tensor behavior_log_probs_N;  // float32, log p_behavior(y); only off-policy corrections read
                                    // it; undefined: the batch is from the present policy
  at::Tensor row_weights_N;         // float32; the total loss is sum_n w_n loss_n
};

struct HeadOptions {
  ObjectiveTerms objective;             // one objective, or a linear combination of several
  double temperature = 1.0;             // logits are divided by this before the softmax
  bool top_k_metrics = false;           // also fill kTopKOverlap and kTopKOverlapAdvantage
  int64_t workspace_bytes = 256 << 20;  // bound of a chunk's logits and their gradient
};

struct HeadOutput {
  at::Tensor loss_N;  // float32, unweighted, on hidden's device
  at::Tensor
      metrics_NM;  // float32 [N, kNumHeadMetrics] (taopd/objective/row_metrics.h), on the CPU
  at::Tensor d_hidden_NH;  // hidden's dtype: d (sum_n w_n loss_n) / d hidden
};

// Computes the loss and both gradients in one pass. d_lm_head_VH (float32) is accumulated into
// (+=); an undefined tensor skips it. Throws c10::Error on wrong shapes, dtypes or devices, ids
// outside of [0, V), ids that occur twice in a row's support, and a temperature that is not
// positive; d_lm_head is then unspecified. NaN and infinite logits give NaN losses; the caller
// checks loss_N.
HeadOutput StudentHead(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                       const HeadTargets& targets, const HeadOptions& options,
                       at::Tensor d_lm_head_VH);

// The same as an autograd node: returns sum_n w_n loss_n (a float32 scalar), whose backward hands
// out the gradients computed in the forward pass to hidden and lm_head (lm_head's is cast to its
// dtype).
at::Tensor StudentHeadLoss(const at::Tensor& hidden_NH, const at::Tensor& lm_head_VH,
                           const HeadTargets& targets, const HeadOptions& options,
                           HeadOutput* output);

}  // namespace taopd
