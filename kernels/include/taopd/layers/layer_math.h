// The arithmetic of a transformer layer between its matrix products, element by element: one source
// for the CPU and the CUDA kernels (float) and for the tests' finite differences (double). The
// caller rounds results to the storage type.
#pragma once

#include "taopd/base/always_inline.h"
#include "taopd/base/host_device.h"

namespace taopd {

// The gradient of RMSNorm (Zhang and Sennrich, arXiv:1910.07467): y = n weight with n = x r and
// r = 1 / sqrt(mean(x^2) + eps). With g = dy weight, dx = r (g - n mean(g n)), and d weight is the
// sum of dy n over the rows. normalized is n, mean_of_product is mean(g n), and inverse_rms is r.
template <typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void RmsNormGradient(const Real& d_y, const Real& weight,
                                                           const Real& normalized,
                                                           const Real& mean_of_product,
                                                           const Real& inverse_rms, Real* d_x) {
  *d_x = (d_y * weight - normalized * mean_of_product) * inverse_rms;
}

// The gradient of the rotary position embedding (Su et al., arXiv:2104.09864) of the pair (x[i],
// x[i + D/2]): the rotation by the opposite angle. The sine of the first half carries the minus
// sign of the rotation.
template <typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void UnrotatePair(
    const Real& d_first, const Real& d_second, const Real& cos_first, const Real& cos_second,
    const Real& sin_first, const Real& sin_second, Real* d_x_first, Real* d_x_second) {
  *d_x_first = d_first * cos_first + d_second * sin_second;
  *d_x_second = d_second * cos_second + d_first * sin_first;
}

// The gradient of SwiGLU (Shazeer, arXiv:2002.05202): y = silu(gate) up with silu(g) = g
// sigmoid(g). sigmoid is sigmoid(gate).
template <typename Real>
TAOPD_HOST_DEVICE TAOPD_ALWAYS_INLINE void SwiGluGradient(const Real& gate, const Real& up,
                                                          const Real& sigmoid, const Real& d_y,
                                                          Real* d_gate, Real* d_up) {
  *d_up = d_y * (gate * sigmoid);
  *d_gate = d_y * up * (sigmoid * (Real(1) + gate * (Real(1) - sigmoid)));
}

}  // namespace taopd
