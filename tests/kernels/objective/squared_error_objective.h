// An objective from outside of the tree, as kernels/include/taopd/objective/objective.h describes
// it: one function and one row.
#pragma once

#include <cmath>

#include "taopd/objective/objective_row.h"

#define TAOPD_EXTRA_OBJECTIVES(X)                                               \
  X(kSquaredError, "squared_error", SquaredError, kNeedsSupport,                \
    "sum (p_j - q_j)^2 / 2 | -sum e_j p_j, with e_j = p_j - q_j | p_j e_j | 0", \
    "Half of the squared differences of the support's probabilities.")

namespace taopd::objectives {

// loss = sum_j (p_j - q_j)^2 / 2;  with e_j = p_j - q_j and m = sum_j e_j p_j:  a = -m,
// g_j = p_j (e_j - m)
template <typename Real>
TAOPD_HOST_DEVICE inline void SquaredError(const ObjectiveRow<Real>& row,
                                           const ObjectiveParameters& /*parameters*/,
                                           ObjectiveResult<Real>* out) {
  Real mean = 0;
  out->loss = 0;
  out->c = 0;
  for (int32_t j = 0; j < row.k; ++j) {
    const Real p = std::exp(row.log_p[j]);
    const Real error = p - std::exp(row.log_q[j]);
    out->loss += error * error / 2;
    out->support_gradient[j] = error;
    mean += error * p;
  }
  out->a = -mean;
  for (int32_t j = 0; j < row.k; ++j) {
    out->support_gradient[j] = std::exp(row.log_p[j]) * (out->support_gradient[j] - mean);
  }
}

}  // namespace taopd::objectives
