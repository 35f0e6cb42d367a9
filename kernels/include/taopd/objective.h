// The objectives: what one response position costs, and its gradient with respect to the logits.
//
// Let z be the student's logits, p = softmax(z), S the k support ids, y the sampled token, q the
// teacher. An objective sees only O(k) numbers (ObjectiveRow) and answers in ONE fixed form
// (ObjectiveResult):
//
//   d loss / d z_v  =  a p(v)  +  sum_j b_j [v = s_j]  +  c [v = y]
//
// so a kernel needs a dense scalar, k sparse numbers and one number on the sampled token, whatever
// the objective. The k numbers are handed out as support_gradient[j] = a p(s_j) + b_j, the whole of
// the first two terms: b_j alone holds the tail's log-ratio (or q_tail / p_tail, which may be 1e6),
// which cancels against a p(s_j), and in float32 that cancellation would be the largest error of
// the gradient.
//
// To add an objective: a function in objective_functions.h and a row in TAOPD_OBJECTIVES below. The
// registry, the dispatch, the tests against finite differences and the CUDA build follow from the
// row.
//
// Everything here is free of state, allocation and framework; any thread, host or device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "taopd/host_device.h"
#include "taopd/objective_functions.h"
#include "taopd/objective_row.h"

namespace taopd {

// Inputs beyond the student's own numbers. A caller without them must refuse the objective.
enum ObjectiveNeeds : uint32_t {
  kNeedsNothing = 0,
  kNeedsSupport = 1,         // support ids and log q on them, k >= 1
  kNeedsTeacherTail = 2,     // log_q_tail
  kNeedsTeacherSampled = 4,  // log_q_sampled
  kReadsBehavior = 8,        // log_behavior_sampled, where the batch is not from the present policy
  kReadsBeta = 16,           // Objective::beta in (0, 1)
  // The gradient is that of a surrogate with stop-gradients (a score-function estimate): unbiased
  // over y ~ p, but not the derivative of the loss value for a given y.
  kScoreFunction = 32,
};

// X(enumerator, name in configurations, function, needs, what it is and when to use it)
#define TAOPD_OBJECTIVES(X)                                                                     \
  X(kTaOpd, "ta_opd", TaOpd, kNeedsSupport | kNeedsTeacherTail,                                 \
    "Tail-Aware Top-k OPD (paper, Method): reverse KL on the support plus one token that "      \
    "carries the tail. The default.")                                                           \
  X(kScTaOpd, "sc_ta_opd", ScTaOpd,                                                             \
    kNeedsSupport | kNeedsTeacherTail | kNeedsTeacherSampled | kReadsBehavior | kScoreFunction, \
    "Sample-corrected TA-OPD (paper, Discussion): adds the sampled token's estimate of what "   \
    "TA-OPD leaves out; unbiased for the full reverse KL in value and gradient.")               \
  X(kNormalized, "normalized", Normalized, kNeedsSupport,                                       \
    "Normalized top-k OPD (paper, Compared Methods): reverse KL of both distributions "         \
    "renormalised on the support. Blind to the tail, which grows; a baseline.")                 \
  X(kUnnormalized, "unnormalized", Unnormalized, kNeedsSupport,                                 \
    "Unnormalized top-k OPD (paper, Compared Methods): the support's part of the reverse KL. "  \
    "Not a divergence and collapses; a baseline.")                                              \
  X(kMopd, "mopd", Mopd, kNeedsSupport,                                                         \
    "Generalised KL on the support: unnormalized plus the difference of masses, so that it is " \
    "a divergence. Gives the tail only the gradient of the normaliser.")                        \
  X(kEmaPg, "ema_pg", EmaPg, kNeedsSupport | kNeedsTeacherSampled | kScoreFunction,             \
    "EMA-PG's top-k estimator (paper, Discussion of EMA-PG): unnormalized plus the sampled "    \
    "token where it is outside of the support. Unbiased on-policy; more variance than "         \
    "sc_ta_opd.")                                                                               \
  X(kSampledToken, "sampled_token", SampledToken, kNeedsTeacherSampled | kScoreFunction,        \
    "Sampled-token OPD, the k1 estimator (paper, Compared Methods) with the score-function "    \
    "gradient. Needs no top-k from the teacher; high variance.")                                \
  X(kSampledTokenK2, "sampled_token_k2", SampledTokenK2, kNeedsTeacherSampled,                  \
    "Half of the squared log-ratio of the sampled token (Schulman's k2): never negative, and "  \
    "in gradient the same as sampled_token.")                                                   \
  X(kSampledTokenK3, "sampled_token_k3", SampledTokenK3, kNeedsTeacherSampled,                  \
    "q/p - 1 - log q/p of the sampled token (Schulman's k3), differentiated as it stands, as "  \
    "GRPO does: never negative, low variance; its expected gradient is that of the forward "    \
    "KL.")                                                                                      \
  X(kVopd, "vopd", Vopd, kNeedsSupport | kNeedsTeacherSampled | kScoreFunction,                 \
    "sampled_token with the normalized loss as baseline (no gradient through it): less "        \
    "variance where the support holds most of the mass.")                                       \
  X(kForwardKl, "forward_kl", ForwardKl, kNeedsSupport,                                         \
    "Forward KL of both distributions renormalised on the support: covers the teacher's "       \
    "modes; blind to the tail.")                                                                \
  X(kForwardKlTail, "forward_kl_tail", ForwardKlTail, kNeedsSupport | kNeedsTeacherTail,        \
    "Forward KL on the support plus the tail token; with k = V the classic distillation loss.") \
  X(kJsd, "jsd", Jsd, kNeedsSupport | kNeedsTeacherTail | kReadsBeta,                           \
    "Generalised Jensen-Shannon divergence with the tail token, weights beta for the teacher "  \
    "(GKD, Agarwal et al. 2024): bounded, towards forward KL for small beta, reverse for "      \
    "large.")                                                                                   \
  X(kCrossEntropy, "cross_entropy", CrossEntropy, kNeedsNothing,                                \
    "-log p(y): supervised fine-tuning on given responses; needs no teacher.")

enum class ObjectiveKind : int32_t {
#define TAOPD_ENUMERATOR(kind, name, function, needs, summary) kind,
  TAOPD_OBJECTIVES(TAOPD_ENUMERATOR)
#undef TAOPD_ENUMERATOR
};

// Which objective, with its parameters. Small and copyable: passed by value into kernels.
struct Objective {
  ObjectiveKind kind = ObjectiveKind::kTaOpd;
  double beta = 0.5;  // kReadsBeta only
};

struct ObjectiveInfo {
  std::string_view name;
  ObjectiveKind kind;
  uint32_t needs;  // ObjectiveNeeds, or-ed
  std::string_view summary;
};

inline constexpr std::array kObjectives = {
#define TAOPD_INFO(kind, name, function, needs, summary) \
  ObjectiveInfo{name, ObjectiveKind::kind, needs, summary},
    TAOPD_OBJECTIVES(TAOPD_INFO)
#undef TAOPD_INFO
};

// All objectives in the order of their kinds, for help texts, tests and configuration checks.
constexpr const std::array<ObjectiveInfo, kObjectives.size()>& AllObjectives() {
  return kObjectives;
}

constexpr const ObjectiveInfo& InfoOf(const Objective& objective) {
  return kObjectives[static_cast<std::size_t>(objective.kind)];
}

// The objective of that name with default parameters; nullopt where there is none.
constexpr std::optional<Objective> FindObjective(std::string_view name) {
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.name == name) return Objective{.kind = info.kind};
  }
  return std::nullopt;
}

// The loss and its gradient for one row. REQUIRES: what InfoOf(objective).needs names is in the
// row. All results are finite for log-probabilities that are <= 0 or -inf; see kLogProbFloor for
// zero mass.
template <typename Real>
TAOPD_HOST_DEVICE inline void EvaluateObjective(const Objective& objective,
                                                const ObjectiveRow<Real>& row,
                                                ObjectiveResult<Real>* result) {
  result->num_limited = 0;
  switch (objective.kind) {
#define TAOPD_CASE(kind, name, function, needs, summary) \
  case ObjectiveKind::kind:                              \
    return objectives::function(row, static_cast<Real>(objective.beta), result);
    TAOPD_OBJECTIVES(TAOPD_CASE)
#undef TAOPD_CASE
  }
}

}  // namespace taopd
