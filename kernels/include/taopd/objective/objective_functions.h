// The objectives themselves, one function each. objective.h holds the contract and the registry.
// REQUIRES: loss, a and c of the result are 0 before the call.
//
// Notation:
//   r_j    log p(s_j)/q(s_j)
//   T      log p_tail/q_tail
//   m      sum_j p(s_j), the student's mass on the support
//   bars   renormalized on the support S
//   g_j    support_gradient[j]
//   S+     the support and the tail token
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/base/host_device.h"
#include "taopd/objective/log_math.h"
#include "taopd/objective/objective_row.h"

namespace taopd::objectives {

// g_j = a p_j: objectives that treat the support like the rest of the vocabulary.
template <typename Real>
TAOPD_HOST_DEVICE inline void FillDense(const ObjectiveRow<Real>& row, ObjectiveResult<Real>* out) {
  for (int32_t j = 0; j < row.k; ++j) out->support_gradient[j] = out->a * row.p[j];
}

// Score-function gradient: factor * d log p(y), so a = -factor and c = factor.
template <typename Real>
TAOPD_HOST_DEVICE inline void FillScore(const ObjectiveRow<Real>& row, Real factor,
                                        ObjectiveResult<Real>* out) {
  out->a = -factor;
  out->c = factor;
  FillDense(row, out);
}

// Returns sum_j p_j r_j over the support and leaves r_j in support_gradient.
template <typename Real>
TAOPD_HOST_DEVICE inline Real SupportReverseKl(const ObjectiveRow<Real>& row,
                                               ObjectiveResult<Real>* out) {
  Real sum = 0;
  for (int32_t j = 0; j < row.k; ++j) {
    const Real r = WeightedLogRatio(row.log_p[j], row.log_q[j], &out->num_limited);
    out->support_gradient[j] = r;
    sum += row.p[j] * r;
  }
  return sum;
}

// g_j = p_j (r_j - shift), for the r_j that SupportReverseKl left in support_gradient.
template <typename Real>
TAOPD_HOST_DEVICE inline void FinishReverseKl(const ObjectiveRow<Real>& row, Real shift,
                                              ObjectiveResult<Real>* out) {
  for (int32_t j = 0; j < row.k; ++j) {
    out->support_gradient[j] = row.p[j] * (out->support_gradient[j] - shift);
  }
}

// Returns the reverse KL on S+ (the paper's eq. 4 and proposition 3). Leaves r_j in
// support_gradient and T in *tail_ratio. T is 0 if the student's tail is empty, because it then
// only multiplies zeros.
template <typename Real>
TAOPD_HOST_DEVICE inline Real TailAwareKl(const ObjectiveRow<Real>& row, Real* tail_ratio,
                                          ObjectiveResult<Real>* out) {
  *tail_ratio = WeightedLogRatio(row.log_p_tail, row.log_q_tail, &out->num_limited);
  return SupportReverseKl(row, out) + std::exp(row.log_p_tail) * *tail_ratio;
}

// loss = sum over S+ of p log p/q;  a = T - loss;  g_j = p_j (r_j - loss)
template <typename Real>
TAOPD_HOST_DEVICE inline void TaOpd(const ObjectiveRow<Real>& row,
                                    const ObjectiveParameters& /*parameters*/,
                                    ObjectiveResult<Real>* out) {
  Real tail_ratio = 0;
  out->loss = TailAwareKl(row, &tail_ratio, out);
  out->a = tail_ratio - out->loss;
  FinishReverseKl(row, out->loss, out);
}

// The paper's eq. 7: ta_opd + A with A = rho [y not in S] (log p(y)/q(y) - T), whose gradient
// is A d log p(y). rho is ImportanceRatio. A given response has no behavior policy and so no ratio:
// its A is 0.
template <typename Real>
TAOPD_HOST_DEVICE inline void ScTaOpd(const ObjectiveRow<Real>& row,
                                      const ObjectiveParameters& parameters,
                                      ObjectiveResult<Real>* out) {
  Real tail_ratio = 0;
  const Real ta = TailAwareKl(row, &tail_ratio, out);
  if (!row.sampled_in_support && !std::isnan(row.log_behavior_sampled)) {
    const Real rho = ImportanceRatio(row, parameters, out);
    out->c = rho * (SampledLogRatio(row, &out->num_limited) - tail_ratio);
  }
  out->loss = ta + out->c;
  out->a = tail_ratio - ta - out->c;
  FinishReverseKl(row, out->loss, out);
}

// The full-vocabulary reverse KL: loss = sum_j p_j r_j;  g_j = p_j (r_j - loss). No token is
// outside of the support. REQUIRES: k = V.
template <typename Real>
TAOPD_HOST_DEVICE inline void Full(const ObjectiveRow<Real>& row,
                                   const ObjectiveParameters& /*parameters*/,
                                   ObjectiveResult<Real>* out) {
  out->loss = SupportReverseKl(row, out);
  FinishReverseKl(row, out->loss, out);
}

// loss = sum_j pbar_j rbar_j;  a = 0;  g_j = pbar_j (rbar_j - loss). pbar comes from the log-probs
// directly, so it is well defined for a support of any mass. If the teacher has no mass on the
// whole support, log q is the floor at each id.
template <typename Real>
TAOPD_HOST_DEVICE inline void Normalized(const ObjectiveRow<Real>& row,
                                         const ObjectiveParameters& /*parameters*/,
                                         ObjectiveResult<Real>* out) {
  const Real log_mass_p = LogSumExp(row.log_p, row.k);
  const Real log_mass_q = LogSumExp(row.log_q, row.k);
  const bool no_p = log_mass_p == NegativeInfinity<Real>();
  const bool no_q = log_mass_q == NegativeInfinity<Real>();
  for (int32_t j = 0; j < row.k; ++j) {
    const Real log_p = no_p ? row.log_p[j] : row.log_p[j] - log_mass_p;
    const Real log_q = no_q ? row.log_q[j] : row.log_q[j] - log_mass_q;
    const Real r = WeightedLogRatio(log_p, log_q, &out->num_limited);
    out->support_gradient[j] = r;
    out->loss += std::exp(log_p) * r;
  }
  for (int32_t j = 0; j < row.k; ++j) {
    const Real p = no_p ? Real(0) : std::exp(row.log_p[j] - log_mass_p);
    out->support_gradient[j] = p * (out->support_gradient[j] - out->loss);
  }
}

// loss = sum_j p_j r_j;  a = -(loss + m);  g_j = p_j (r_j + 1 - loss - m)
template <typename Real>
TAOPD_HOST_DEVICE inline void Unnormalized(const ObjectiveRow<Real>& row,
                                           const ObjectiveParameters& /*parameters*/,
                                           ObjectiveResult<Real>* out) {
  out->loss = SupportReverseKl(row, out);
  Real mass = 0;
  for (int32_t j = 0; j < row.k; ++j) mass += row.p[j];
  out->a = -(out->loss + mass);
  FinishReverseKl(row, out->loss + mass - 1, out);
}

// loss = sum_j (p_j r_j + q_j - p_j), where every term is >= 0;  a = -sum_j p_j r_j;
// g_j = p_j (r_j + a)
template <typename Real>
TAOPD_HOST_DEVICE inline void Mopd(const ObjectiveRow<Real>& row,
                                   const ObjectiveParameters& /*parameters*/,
                                   ObjectiveResult<Real>* out) {
  const Real reverse_kl = SupportReverseKl(row, out);
  out->loss = reverse_kl;
  for (int32_t j = 0; j < row.k; ++j) out->loss += std::exp(row.log_q[j]) - row.p[j];
  out->a = -reverse_kl;
  FinishReverseKl(row, reverse_kl, out);
}

// The paper's eq. 22: loss = sum_j p_j r_j + A' with A' = [y not in S] log p(y)/q(y). Every
// log-ratio is under a stop-gradient, so a = -loss, g_j = p_j (r_j - loss) and c = A'. As
// published, it is for batches from the current policy; for others, A' is multiplied by rho.
template <typename Real>
TAOPD_HOST_DEVICE inline void EmaPg(const ObjectiveRow<Real>& row,
                                    const ObjectiveParameters& parameters,
                                    ObjectiveResult<Real>* out) {
  const Real reverse_kl = SupportReverseKl(row, out);
  if (!row.sampled_in_support) {
    const Real rho = ImportanceRatio(row, parameters, out);
    out->c = rho * SampledLogRatio(row, &out->num_limited);
  }
  out->loss = reverse_kl + out->c;
  out->a = -out->loss;
  FinishReverseKl(row, out->loss, out);
}

// k1: loss = rho log p(y)/q(y), gradient loss * d log p(y).
template <typename Real>
TAOPD_HOST_DEVICE inline void SampledToken(const ObjectiveRow<Real>& row,
                                           const ObjectiveParameters& parameters,
                                           ObjectiveResult<Real>* out) {
  const Real rho = ImportanceRatio(row, parameters, out);
  out->loss = rho * SampledLogRatio(row, &out->num_limited);
  FillScore(row, out->loss, out);
}

// k2 (Schulman, "Approximating KL Divergence", 2020), for y drawn from a behavior policy mu:
// loss = rho r^2 / 2 with r = log p(y)/q(y), gradient rho r d log p(y). The mean of the gradient
// over y ~ mu is sum_y p(y) r d log p(y), the gradient of the reverse KL, for every mu that is not
// zero where p is not. rho is outside of the derivative: with d rho the mean would be the gradient
// of E_p[r^2 / 2], another objective (Tang and Munos 2025, arXiv:2506.09477).
template <typename Real>
TAOPD_HOST_DEVICE inline void SampledTokenK2(const ObjectiveRow<Real>& row,
                                             const ObjectiveParameters& parameters,
                                             ObjectiveResult<Real>* out) {
  const Real rho = ImportanceRatio(row, parameters, out);
  const Real r = SampledLogRatio(row, &out->num_limited);
  out->loss = rho * (r * r / 2);
  FillScore(row, rho * r, out);
}

// k3 (the same source): loss = rho (q(y)/p(y) - 1 + r), gradient rho (1 - q(y)/p(y)) d log p(y).
// The mean of the gradient over y ~ mu is sum_y (p(y) - q(y)) d log p(y), the gradient of the
// forward KL. The log-ratio is held at kMaxLogWeight, and the ratio with it, so that the loss stays
// >= 0.
template <typename Real>
TAOPD_HOST_DEVICE inline void SampledTokenK3(const ObjectiveRow<Real>& row,
                                             const ObjectiveParameters& parameters,
                                             ObjectiveResult<Real>* out) {
  const Real rho = ImportanceRatio(row, parameters, out);
  const Real minus_r =
      AtMost(-SampledLogRatio(row, &out->num_limited), kMaxLogWeight, &out->num_limited);
  const Real ratio_minus_one = std::expm1(minus_r);
  out->loss = rho * (ratio_minus_one - minus_r);
  FillScore(row, -rho * ratio_minus_one, out);
}

// loss = rho log p(y)/q(y), gradient rho (log p(y)/q(y) - baseline) d log p(y) with the normalized
// loss as baseline.
template <typename Real>
TAOPD_HOST_DEVICE inline void Vopd(const ObjectiveRow<Real>& row,
                                   const ObjectiveParameters& parameters,
                                   ObjectiveResult<Real>* out) {
  Normalized(row, parameters, out);
  const Real baseline = out->loss;
  const Real rho = ImportanceRatio(row, parameters, out);
  const Real r = SampledLogRatio(row, &out->num_limited);
  out->loss = rho * r;
  FillScore(row, rho * (r - baseline), out);
}

// q log q/p. log p = -inf is read as the floor, because a student without mass where the teacher
// has some would make a forward KL +inf.
template <typename Real>
TAOPD_HOST_DEVICE inline Real ForwardTerm(Real log_q, Real log_p, int32_t* num_limited) {
  if (log_q == NegativeInfinity<Real>()) return 0;
  if (log_p == NegativeInfinity<Real>()) log_p = FlooredLogProb(log_p, num_limited);
  return std::exp(log_q) * (log_q - log_p);
}

// loss = sum_j qbar_j log qbar_j/pbar_j;  a = 0;  g_j = pbar_j - qbar_j. All are zero if either
// distribution has no mass on the support.
template <typename Real>
TAOPD_HOST_DEVICE inline void ForwardKl(const ObjectiveRow<Real>& row,
                                        const ObjectiveParameters& /*parameters*/,
                                        ObjectiveResult<Real>* out) {
  const Real log_mass_p = LogSumExp(row.log_p, row.k);
  const Real log_mass_q = LogSumExp(row.log_q, row.k);
  const bool defined =
      !(log_mass_p == NegativeInfinity<Real>() || log_mass_q == NegativeInfinity<Real>());
  if (!defined) ++out->num_limited;
  for (int32_t j = 0; j < row.k; ++j) {
    out->support_gradient[j] = 0;
    if (!defined) continue;
    const Real log_p = row.log_p[j] - log_mass_p;
    const Real log_q = row.log_q[j] - log_mass_q;
    out->loss += ForwardTerm(log_q, log_p, &out->num_limited);
    out->support_gradient[j] = std::exp(log_p) - std::exp(log_q);
  }
}

// sampled_token, plus forward_kl if the teacher's entropy is above the threshold. The two gradients
// add, because forward_kl has a = c = 0.
template <typename Real>
TAOPD_HOST_DEVICE inline void EntropyAware(const ObjectiveRow<Real>& row,
                                           const ObjectiveParameters& parameters,
                                           ObjectiveResult<Real>* out) {
  const Real rho = ImportanceRatio(row, parameters, out);
  const Real weighted = rho * SampledLogRatio(row, &out->num_limited);
  if (row.teacher_entropy <= Real(parameters.entropy_threshold)) {
    out->loss = weighted;
    FillScore(row, weighted, out);
    return;
  }
  ForwardKl(row, parameters, out);
  out->loss += weighted;
  if (std::isnan(row.teacher_entropy)) out->loss = row.teacher_entropy;
  out->a = -weighted;
  out->c = weighted;
  for (int32_t j = 0; j < row.k; ++j) out->support_gradient[j] -= weighted * row.p[j];
}

// loss = sum over S+ of q log q/p;  a = Q - q_tail/p_tail;  g_j = Q p_j - q_j, where Q = sum over
// S+ of q is 1 up to the rounding of the teacher's numbers. If the student has no tail (k = V),
// a = 0, because it then only multiplies zeros.
template <typename Real>
TAOPD_HOST_DEVICE inline void ForwardKlTail(const ObjectiveRow<Real>& row,
                                            const ObjectiveParameters& /*parameters*/,
                                            ObjectiveResult<Real>* out) {
  out->loss = ForwardTerm(row.log_q_tail, row.log_p_tail, &out->num_limited);
  Real teacher_mass = std::exp(row.log_q_tail);
  for (int32_t j = 0; j < row.k; ++j) {
    out->loss += ForwardTerm(row.log_q[j], row.log_p[j], &out->num_limited);
    teacher_mass += std::exp(row.log_q[j]);
  }
  for (int32_t j = 0; j < row.k; ++j) {
    out->support_gradient[j] = teacher_mass * row.p[j] - std::exp(row.log_q[j]);
  }
  if (row.log_p_tail == NegativeInfinity<Real>()) return;
  const Real log_ratio =
      AtMost(row.log_q_tail - row.log_p_tail, kMaxLogTailRatio, &out->num_limited);
  out->a = (teacher_mass - 1) - std::expm1(log_ratio);
}

// One outcome of the Jensen-Shannon divergence: with M = beta q + (1 - beta) p,
// *term = beta q log q/M + (1 - beta) p log p/M; returns log p/M (0 for p = 0).
template <typename Real>
TAOPD_HOST_DEVICE inline Real JsdOutcome(Real log_p, Real log_q, Real beta, Real* term) {
  *term = 0;
  const Real log_m = LogAddExp(std::log(beta) + log_q, std::log1p(-beta) + log_p);
  if (log_q != NegativeInfinity<Real>()) *term += beta * std::exp(log_q) * (log_q - log_m);
  if (log_p == NegativeInfinity<Real>()) return 0;
  *term += (1 - beta) * std::exp(log_p) * (log_p - log_m);
  return log_p - log_m;
}

// With u = log p/M and U = the sum over S+ of p u:
//   a = (1 - beta) (u_tail - U)
//   g_j = (1 - beta) p_j (u_j - U)
// The divergence is bounded, so zeros of q need no floor.
template <typename Real>
TAOPD_HOST_DEVICE inline void Jsd(const ObjectiveRow<Real>& row,
                                  const ObjectiveParameters& parameters,
                                  ObjectiveResult<Real>* out) {
  const Real beta = static_cast<Real>(parameters.beta);
  Real term = 0;
  const Real u_tail = JsdOutcome(row.log_p_tail, row.log_q_tail, beta, &term);
  out->loss = term;
  Real mean_u = std::exp(row.log_p_tail) * u_tail;
  for (int32_t j = 0; j < row.k; ++j) {
    const Real u = JsdOutcome(row.log_p[j], row.log_q[j], beta, &term);
    out->loss += term;
    out->support_gradient[j] = u;
    mean_u += row.p[j] * u;
  }
  out->a = (1 - beta) * (u_tail - mean_u);
  for (int32_t j = 0; j < row.k; ++j) {
    out->support_gradient[j] = (1 - beta) * row.p[j] * (out->support_gradient[j] - mean_u);
  }
}

// loss = -log p(y);  a = 1;  c = -1. The floor replaces only log p(y) = -inf.
template <typename Real>
TAOPD_HOST_DEVICE inline void CrossEntropy(const ObjectiveRow<Real>& row,
                                           const ObjectiveParameters& /*parameters*/,
                                           ObjectiveResult<Real>* out) {
  const bool no_mass = row.log_p_sampled == NegativeInfinity<Real>();
  out->loss = -(no_mass ? FlooredLogProb(row.log_p_sampled, &out->num_limited) : row.log_p_sampled);
  out->a = 1;
  out->c = -1;
  FillDense(row, out);
}

// loss = -rho A, gradient -rho A d log p(y), for the advantage A of y's response: the policy
// gradient (Williams 1992) with rho from y ~ behavior. PPO's clip (Schulman et al. 2017,
// arXiv:1707.06347, eq. 7) takes the larger of -rho A and -clip(rho, 1 - clip_low, 1 + clip_high)
// A; where the clip decides, the loss is constant in p. The guards on rho come first, and a masked
// rho leaves no loss.
template <typename Real>
TAOPD_HOST_DEVICE inline void PolicyGradient(const ObjectiveRow<Real>& row,
                                             const ObjectiveParameters& parameters,
                                             ObjectiveResult<Real>* out) {
  Real factor = 0;
  if (!std::isnan(row.log_behavior_sampled)) {
    const Real rho = ImportanceRatio(row, parameters, out);
    const Real high = 1 + Real(parameters.clip_high), low = 1 - Real(parameters.clip_low);
    const bool above = parameters.clip_high > 0 && row.advantage > 0 && rho > high;
    // A masked rho is 0.
    const bool below = parameters.clip_low > 0 && row.advantage < 0 && rho < low && rho > 0;
    if (above || below) {
      ++out->num_clipped;
      out->loss = -(above ? high : low) * row.advantage;
    } else {
      out->loss = factor = -rho * row.advantage;
    }
  }
  FillScore(row, factor, out);
}

}  // namespace taopd::objectives
