// The inputs and outputs of an objective for one response position, and the limits that keep it
// finite.
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/base/host_device.h"
#include "taopd/objective/log_math.h"

namespace taopd {

// If the student has mass where the teacher has none, a reverse KL is +inf. log q is therefore read
// as max(log q, kLogProbFloor). exp(-100) is below the smallest float32, so this changes only zeros
// and numbers that a float32 probability cannot distinguish from zero. The loss and the gradient
// keep their sign and a size (100 nats) that gradient clipping can handle. Each use is counted in
// num_limited.
inline constexpr double kLogProbFloor = -100.0;

// exp(log-ratio) of single tokens (the importance ratio rho, and q/p of k3) is computed as
// exp(min(log-ratio, kMaxLogWeight)). The limit, 4.9e8, is far above any useful weight, and finite
// when squared in float32. Each use is counted in num_limited. There is no other clipping.
inline constexpr double kMaxLogWeight = 20.0;

// The ratio of tails q_tail / p_tail only multiplies numbers below p_tail. It is held below
// exp(80), so that the factor itself is a float32.
inline constexpr double kMaxLogTailRatio = 80.0;

// Parameters of objectives, with their defaults. Each is read only by the objectives whose traits
// name it (ObjectiveTraits). Their ranges are in taopd/objective/check_objective.h.
struct ObjectiveParameters {
  // The weight of the teacher in jsd's mixture.
  double beta = 0.5;
  // Entropy in nats. entropy_aware adds its forward KL where the teacher's entropy is above it.
  double entropy_threshold = 0.8;
  // Guards on the importance ratio rho = p(y)/p_behavior(y). 0 switches a guard off. A guard that
  // acts biases the loss and the gradient, and is counted in ObjectiveResult.
  double max_rho = 0;         // rho is held at this number (truncated importance sampling)
  double mask_rho_below = 0;  // a smaller rho is read as 0
  double mask_rho_above = 0;  // a larger rho is read as 0
  // PPO's clip of rho to [1 - clip_low, 1 + clip_high]; 0 switches a side off.
  double clip_low = 0;
  double clip_high = 0;
};

// The inputs of an objective for one row. The arrays belong to the caller.
template <typename Real>
struct ObjectiveRow {
  int32_t k = 0;                // support size
  const Real* log_p = nullptr;  // [k], the student's log-probs, of the full softmax
  const Real* p = nullptr;      // [k], exp(log_p)
  const Real* log_q = nullptr;  // [k], the teacher's
  // Log-sum-exp of the log-probs outside of the support; -inf if k = V.
  Real log_p_tail = 0;
  Real log_q_tail = 0;
  Real log_p_sampled = 0;  // log p(y)
  Real log_q_sampled = 0;  // log q(y)
  // Log of y's probability when it was drawn; log_p_sampled if the batch is on-policy. NaN if the
  // policy that wrote y is unknown, as for a given response.
  Real log_behavior_sampled = 0;
  bool sampled_in_support = false;
  // The entropy of the teacher's whole distribution, in nats.
  Real teacher_entropy = 0;
  // The reward of y's response minus its baseline.
  Real advantage = 0;
};

// The most terms of a linear combination.
inline constexpr int32_t kMaxObjectiveTerms = 4;

template <typename Real>
struct ObjectiveResult {
  Real loss = 0;
  Real a = 0;  // the factor of p(v) for every v outside of the support
  Real c = 0;  // added at y, inside or outside of the support
  // [k], the caller's array: a p(s_j) + b_j.
  Real* support_gradient = nullptr;
  // The number of log-probs or weights that were held at one of the limits above.
  int32_t num_limited = 0;
  // The number of rho that were held at ObjectiveParameters::max_rho.
  int32_t num_truncated = 0;
  // The number of rho that were read as 0, because they are outside of
  // [mask_rho_below, mask_rho_above].
  int32_t num_masked = 0;
  // The number of rho whose gradient PPO's clip (clip_low, clip_high) left out.
  int32_t num_clipped = 0;
  // Filled in by EvaluateObjectives: the weight times the loss of each term, 0 for unused terms.
  // `loss` is their sum.
  Real term_loss[kMaxObjectiveTerms] = {};
};

namespace objectives {

// A log-probability, at least kLogProbFloor.
template <typename Real>
TAOPD_HOST_DEVICE inline Real FlooredLogProb(Real log_q, int32_t* num_limited) {
  if (log_q < Real(kLogProbFloor)) {
    ++*num_limited;
    return Real(kLogProbFloor);
  }
  return log_q;
}

// log p/q in a term that p multiplies: 0 for p = 0, because 0 log 0 = 0.
template <typename Real>
TAOPD_HOST_DEVICE inline Real WeightedLogRatio(Real log_p, Real log_q, int32_t* num_limited) {
  if (log_p == NegativeInfinity<Real>()) return 0;
  return log_p - FlooredLogProb(log_q, num_limited);
}

// log p(y)/q(y) of the sampled token. If the student gives y no mass at all, log p is the floor.
template <typename Real>
TAOPD_HOST_DEVICE inline Real SampledLogRatio(const ObjectiveRow<Real>& row, int32_t* num_limited) {
  const Real log_p = row.log_p_sampled == NegativeInfinity<Real>()
                         ? FlooredLogProb(row.log_p_sampled, num_limited)
                         : row.log_p_sampled;
  return log_p - FlooredLogProb(row.log_q_sampled, num_limited);
}

// The logarithm of a single token's weight or of a ratio, held at one of the limits above.
template <typename Real>
TAOPD_HOST_DEVICE inline Real AtMost(Real logarithm, double limit, int32_t* num_limited) {
  if (logarithm > Real(limit)) {
    ++*num_limited;
    return Real(limit);
  }
  return logarithm;
}

// Returns rho = p(y)/p_behavior(y), the factor of terms that estimate an expectation over y ~ p,
// after the guards of the parameters. It is exactly 1 on-policy and carries no gradient (a
// stop-gradient in the surrogate).
template <typename Real>
TAOPD_HOST_DEVICE inline Real ImportanceRatio(const ObjectiveRow<Real>& row,
                                              const ObjectiveParameters& parameters,
                                              ObjectiveResult<Real>* out) {
  if (row.log_p_sampled == NegativeInfinity<Real>()) return 0;
  const Real rho = std::exp(
      AtMost(row.log_p_sampled - row.log_behavior_sampled, kMaxLogWeight, &out->num_limited));
  const bool below = parameters.mask_rho_below > 0 && rho < Real(parameters.mask_rho_below);
  const bool above = parameters.mask_rho_above > 0 && rho > Real(parameters.mask_rho_above);
  if (below || above) {
    ++out->num_masked;
    return 0;
  }
  if (parameters.max_rho > 0 && rho > Real(parameters.max_rho)) {
    ++out->num_truncated;
    return Real(parameters.max_rho);
  }
  return rho;
}

}  // namespace objectives

// The epsilon of the paper's listing: where a tail is derived from a support's mass, the log of
// that mass is held at least this far below zero.
inline constexpr double kTailEpsilon = 1e-6;

enum TeacherTail : int32_t {
  kTailGiven,    // The teacher sent it.
  kTailDerived,  // It is log1mexp of the log of the support's mass.
  kTailClamped,  // The same, with the mass held at exp(-kTailEpsilon).
};

// For teachers that send no tail. Replaces a NaN log_q_tail by log1mexp of the log of the mass that
// the teacher gives the support, with the clamp of the paper's listing; by -inf if the support is
// the whole vocabulary. A NaN in log_q stays. REQUIRES: k and log_q are set.
template <typename Real>
TAOPD_HOST_DEVICE inline TeacherTail FillTeacherTail(ObjectiveRow<Real>* row,
                                                     bool whole_vocabulary) {
  if (!std::isnan(row->log_q_tail) || row->k == 0) return kTailGiven;
  if (whole_vocabulary) {
    row->log_q_tail = NegativeInfinity<Real>();
    return kTailDerived;
  }
  bool clamped = false;
  row->log_q_tail = LogTailFromLogMass(LogSumExp(row->log_q, row->k), Real(kTailEpsilon), &clamped);
  return clamped ? kTailClamped : kTailDerived;
}

}  // namespace taopd
