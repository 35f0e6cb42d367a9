// What an objective reads and writes for one response position, and the limits that keep it finite.
#pragma once

#include <cmath>
#include <cstdint>

#include "taopd/base/host_device.h"
#include "taopd/objective/log_math.h"

namespace taopd {

// Where the student has mass and the teacher none, a reverse KL is +inf. log q is therefore read as
// max(log q, kLogProbFloor): exp(-100) is below the smallest float32, so only zeros and numbers
// that a float32 probability cannot tell from zero are touched, and the loss and the gradient keep
// the sign and a size (100 nats) that gradient clipping can handle. Each use is counted in
// num_limited.
inline constexpr double kLogProbFloor = -100.0;

// exp(log-ratio) of single tokens (the importance ratio rho, and q/p of k3) is computed as
// exp(min(log-ratio, kMaxLogWeight)): 4.9e8, far outside of any useful weight, and finite when
// squared in float32. Counted in num_limited. There is no other clipping.
inline constexpr double kMaxLogWeight = 20.0;

// The ratio of tails q_tail / p_tail multiplies numbers below p_tail only; held below exp(80) so
// that the factor itself is a float32.
inline constexpr double kMaxLogTailRatio = 80.0;

// Parameters of objectives; each is read only by the objectives whose needs name it (objective.h).
struct ObjectiveParameters {
  double beta = 0.5;               // weight of the teacher in jsd's mixture, in (0, 1)
  double entropy_threshold = 0.8;  // nats, >= 0; entropy_aware adds its forward KL above it
  // Truncated importance sampling: rho is held at this number, 0 = never. A held rho makes the loss
  // and gradient biased; each is counted in ObjectiveResult::num_truncated.
  double max_rho = 0;
};

template <typename Real>
struct ObjectiveRow {
  int32_t k = 0;                // support size; the arrays are the caller's
  const Real* log_p = nullptr;  // [k] student, of the full softmax
  const Real* log_q = nullptr;  // [k] teacher
  Real log_p_tail = 0;          // log-sum-exp over the complement of the support; -inf for k = V
  Real log_q_tail = 0;
  Real log_p_sampled = 0;  // log p(y)
  Real log_q_sampled = 0;  // log q(y)
  Real log_behavior_sampled =
      0;  // log of y's probability when it was drawn; log_p_sampled on-policy
  bool sampled_in_support = false;
  Real teacher_entropy = 0;  // nats, of the teacher's whole distribution
};

// The most terms of a linear combination.
inline constexpr int32_t kMaxObjectiveTerms = 4;

template <typename Real>
struct ObjectiveResult {
  Real loss = 0;
  Real a = 0;                        // factor of p(v) for every v outside of the support
  Real c = 0;                        // added at y, inside or outside of the support
  Real* support_gradient = nullptr;  // [k], the caller's array: a p(s_j) + b_j
  int32_t num_limited = 0;           // log-probs or weights held at one of the limits above
  int32_t num_truncated = 0;         // rho held at ObjectiveParameters::max_rho
  // [kMaxObjectiveTerms], filled by EvaluateObjectives: weight times loss of each term, 0 for
  // unused ones; loss is their sum.
  Real term_loss[kMaxObjectiveTerms] = {};
};

namespace objectives {

// A log-probability with the floor.
template <typename Real>
TAOPD_HOST_DEVICE inline Real FlooredLogProb(Real log_q, int32_t* num_limited) {
  if (log_q < Real(kLogProbFloor)) {
    ++*num_limited;
    return Real(kLogProbFloor);
  }
  return log_q;
}

// log p/q where p weighs the term: 0 for p = 0, because 0 log 0 = 0.
template <typename Real>
TAOPD_HOST_DEVICE inline Real WeightedLogRatio(Real log_p, Real log_q, int32_t* num_limited) {
  if (log_p == NegativeInfinity<Real>()) return 0;
  return log_p - FlooredLogProb(log_q, num_limited);
}

// log p(y)/q(y) of the sampled token. A student that gives y no mass at all is read with the floor.
template <typename Real>
TAOPD_HOST_DEVICE inline Real SampledLogRatio(const ObjectiveRow<Real>& row, int32_t* num_limited) {
  const Real log_p = row.log_p_sampled == NegativeInfinity<Real>()
                         ? FlooredLogProb(row.log_p_sampled, num_limited)
                         : row.log_p_sampled;
  return log_p - FlooredLogProb(row.log_q_sampled, num_limited);
}

// exp(log_weight) of a single token, see kMaxLogWeight.
template <typename Real>
TAOPD_HOST_DEVICE inline Real LimitedExp(Real log_weight, int32_t* num_limited) {
  if (log_weight > Real(kMaxLogWeight)) {
    ++*num_limited;
    log_weight = Real(kMaxLogWeight);
  }
  return std::exp(log_weight);
}

}  // namespace objectives

// epsilon of the paper's listing: how far below zero the log of a support's mass is held where a
// tail is made from it.
inline constexpr double kTailEpsilon = 1e-6;

enum TeacherTail : int32_t {
  kTailGiven,    // the teacher sent it
  kTailDerived,  // log1mexp of the support's mass
  kTailClamped,  // the same with the mass held at exp(-kTailEpsilon)
};

// For teachers that send no tail: a NaN log_q_tail is replaced by log1mexp of the mass that the
// teacher gives the support, with the clamp of the paper's listing; of whole_vocabulary (k = V) it
// is -inf. REQUIRES: k, log_q. A NaN in log_q stays.
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
