// The arithmetic of AdamW, element by element: one source for the CPU, the CUDA kernels and the
// tests, like taopd/layers/layer_math.h.
#pragma once

#include "taopd/base/always_inline.h"
#include "taopd/base/host_device.h"

namespace taopd {

// AdamW (Loshchilov and Hutter, arXiv:1711.05101) as torch.optim.AdamW computes it: weight decay is
// apart from the gradient, and both moments are corrected for their start at zero. These are the
// numbers of an update that all elements share.
template <typename Scalar>
struct AdamWFactors {
  Scalar gradient_scale = 1;  // for clipping
  Scalar one_minus_beta1 = 0;
  Scalar beta2 = 0;
  Scalar one_minus_beta2 = 0;
  Scalar step_size = 0;   // lr / (1 - beta1^t)
  Scalar root_scale = 0;  // 1 / sqrt(1 - beta2^t)
  Scalar eps = 0;
};

// Updates both moments of one element.
template <typename Scalar, typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void AdamWMoments(const AdamWFactors<Scalar>& factors,
                                                        const Real& gradient, Real* exp_avg,
                                                        Real* exp_avg_sq) {
  const Real scaled = gradient * factors.gradient_scale;
  *exp_avg = *exp_avg + (scaled - *exp_avg) * factors.one_minus_beta1;
  *exp_avg_sq = *exp_avg_sq * factors.beta2 + scaled * scaled * factors.one_minus_beta2;
}

// Updates one element of the parameter. keep = 1 - lr weight_decay; root = sqrt(exp_avg_sq).
template <typename Scalar, typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void AdamWParameter(const AdamWFactors<Scalar>& factors,
                                                          Scalar keep, const Real& exp_avg,
                                                          const Real& root, Real* parameter) {
  *parameter =
      *parameter * keep - exp_avg * factors.step_size / (root * factors.root_scale + factors.eps);
}

}  // namespace taopd
