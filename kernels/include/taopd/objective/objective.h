// The objectives: the loss of one response position, and its gradient with respect to the logits.
// "The paper" is Huang and Wei, "Tail-Aware Top-k On-Policy Distillation" (preprint, 2026).
//
// Let z be the student's logits, p = softmax(z), S the k support ids, y the sampled token, q the
// teacher. An objective sees only O(k) numbers (ObjectiveRow) and answers in one fixed form
// (ObjectiveResult):
//
//   d loss / d z_v  =  a p(v)  +  sum_j b_j [v = s_j]  +  c [v = y]
//
// A kernel therefore needs a dense scalar, k sparse numbers and one number for the sampled token,
// whatever the objective is. The k numbers are support_gradient[j] = a p(s_j) + b_j, the sum of the
// first two terms at s_j. b_j alone contains the tail's log-ratio (or q_tail / p_tail, which may be
// 1e6), which cancels against a p(s_j); in float32 that cancellation would be the largest error of
// the gradient.
//
// To add an objective, write a function in objective_functions.h and a row in TAOPD_OBJECTIVES
// below. The registry, the dispatch, the configuration, the CUDA build and most tests follow from
// the row; docs/extending.md names what remains.
//
// To try an objective without touching this file, put the function (namespace taopd::objectives)
// into a header of your own, define TAOPD_EXTRA_OBJECTIVES(X) there as rows like those below, such
// as X(kMine, "mine", Mine, kNeedsSupport, "loss | a | b_j | c", "What it is."), and compile
// everything with -DTAOPD_EXTRA_OBJECTIVES_HEADER='"that/header.h"'. The tests compile one such
// header, tests/kernels/objective/squared_error_objective.h.
//
// A loss may be a linear combination of objectives (ObjectiveTerms). The form above is linear, so a
// combination costs the O(k) work of its terms and nothing more over the vocabulary.
//
// The functions keep no state, allocate nothing and depend on no framework. Any thread may call
// them, on the CPU or on a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "taopd/base/host_device.h"
#include "taopd/objective/objective_functions.h"
#include "taopd/objective/objective_row.h"

#ifdef TAOPD_EXTRA_OBJECTIVES_HEADER
#include TAOPD_EXTRA_OBJECTIVES_HEADER
#else
#define TAOPD_EXTRA_OBJECTIVES(X)
#endif

namespace taopd {

// The inputs of an objective besides the student's own numbers, and properties of its gradient. A
// caller that does not have an input must refuse the objectives that need it.
enum ObjectiveTraits : uint32_t {
  kNeedsNothing = 0,
  kNeedsSupport = 1 << 0,         // support ids and log q on them, k >= 1
  kNeedsTeacherTail = 1 << 1,     // log_q_tail, or the one that FillTeacherTail derives
  kNeedsTeacherSampled = 1 << 2,  // log_q_sampled
  // log_behavior_sampled, if the batch is not from the current policy: a part of the loss estimates
  // an expectation over the student's whole distribution from y. A sampler that never draws some
  // tokens (top-p, top-k) biases the estimate, and no ratio repairs that.
  kReadsBehavior = 1 << 3,
  kReadsBeta = 1 << 4,  // beta
  // The gradient is an estimate, unbiased over the draw of y. It is the derivative of a surrogate
  // with stop-gradients, not of the loss value. In k2 and k3 only rho is under a stop-gradient, so
  // their gradients are the derivatives of the loss for a fixed rho.
  kScoreFunction = 1 << 5,
  kNeedsFullVocabulary = 1 << 6,    // the support is the whole vocabulary: k = V
  kNeedsTeacherEntropy = 1 << 7,    // teacher_entropy
  kReadsEntropyThreshold = 1 << 8,  // entropy_threshold
  kReadsRhoGuards = 1 << 9,         // max_rho, mask_rho_below, mask_rho_above
  kNoDenseGradient = 1 << 10,       // a is 0 for every row: the gradient has only b_j and c
  kNeedsAdvantage = 1 << 11,        // advantage
  kReadsClip = 1 << 12,             // clip_low, clip_high
  // The loss is defined for a y that the student did not draw (log_behavior_sampled is NaN): the
  // part of y is then left out.
  kAllowsGivenResponses = 1 << 13,
};

// X(enumerator, name in configurations, function, ObjectiveTraits, formula, summary)
//
// The formula is the loss, a, b_j and c, separated by " | ": a row of the table in
// docs/objectives.md, which defines the symbols. The summary says what the objective is and when to
// use it.
#define TAOPD_OBJECTIVES(X)                                                                        \
  X(kTaOpd, "ta_opd", TaOpd, kNeedsSupport | kNeedsTeacherTail,                                    \
    "sum p_j r_j + p_tail T | T - loss | p_j (r_j - T) | 0",                                       \
    "Tail-Aware Top-k OPD (paper, Method): reverse KL on the support plus one token that carries " \
    "the tail. This is the default.")                                                              \
  X(kScTaOpd, "sc_ta_opd", ScTaOpd,                                                                \
    kNeedsSupport | kNeedsTeacherTail | kNeedsTeacherSampled | kReadsBehavior | kReadsRhoGuards |  \
        kScoreFunction | kAllowsGivenResponses,                                                    \
    "l_TA + A | T - l_TA - A | p_j (r_j - T) | A = rho [y not in S] (r - T)",                      \
    "Sample-corrected TA-OPD (paper, Discussion): adds the sampled token's estimate of what "      \
    "TA-OPD leaves out; unbiased for the full reverse KL in value and gradient. On given "         \
    "responses (data.offpolicy_fraction) it equals ta_opd.")                                       \
  X(kFull, "full", Full, kNeedsSupport | kNeedsFullVocabulary,                                     \
    "sum p_j r_j, where S is the vocabulary | 0 | p_j (r_j - loss) | 0",                           \
    "Full-vocabulary OPD (paper, Preliminaries): the exact reverse KL. It needs the teacher's "    \
    "log-prob of every token, so it is for small vocabularies.")                                   \
  X(kNormalized, "normalized", Normalized, kNeedsSupport | kNoDenseGradient,                       \
    "sum pbar_j rbar_j | 0 | pbar_j (rbar_j - loss) | 0",                                          \
    "Normalized top-k OPD (paper, Compared Methods): reverse KL of both distributions "            \
    "renormalized on the support. It does not see the tail, which grows; use it only as a "        \
    "baseline.")                                                                                   \
  X(kUnnormalized, "unnormalized", Unnormalized, kNeedsSupport,                                    \
    "sum p_j r_j | -(loss + m) | p_j (r_j + 1) | 0",                                               \
    "Unnormalized top-k OPD (paper, Compared Methods): the support's part of the reverse KL. It "  \
    "is not a divergence, and training collapses; use it only as a baseline.")                     \
  X(kMopd, "mopd", Mopd, kNeedsSupport, "sum (p_j r_j + q_j - p_j) | -sum p_j r_j | p_j r_j | 0",  \
    "Generalized KL on the support: unnormalized plus the difference of masses, so that it is a "  \
    "divergence. The tail gets only the gradient of the normalizer.")                              \
  X(kEmaPg, "ema_pg", EmaPg,                                                                       \
    kNeedsSupport | kNeedsTeacherSampled | kReadsBehavior | kReadsRhoGuards | kScoreFunction,      \
    "sum p_j r_j + A' | -loss | p_j r_j | A' = rho [y not in S] r",                                \
    "EMA-PG's top-k estimator (paper, Discussion of EMA-PG): unnormalized plus the sampled token " \
    "where it is outside of the support. It is unbiased, with more variance than sc_ta_opd.")      \
  X(kSampledToken, "sampled_token", SampledToken,                                                  \
    kNeedsTeacherSampled | kReadsBehavior | kReadsRhoGuards | kScoreFunction,                      \
    "rho r | -rho r | 0 | rho r",                                                                  \
    "Sampled-token OPD, the k1 estimator (paper, Compared Methods) with the score-function "       \
    "gradient. It needs no top-k from the teacher and has a high variance.")                       \
  X(kSampledTokenK2, "sampled_token_k2", SampledTokenK2,                                           \
    kNeedsTeacherSampled | kReadsBehavior | kReadsRhoGuards | kScoreFunction,                      \
    "rho r^2 / 2 | -rho r | 0 | rho r",                                                            \
    "Half of the squared log-ratio of the sampled token (Schulman's k2). It is never negative, "   \
    "and its gradient is that of sampled_token.")                                                  \
  X(kSampledTokenK3, "sampled_token_k3", SampledTokenK3,                                           \
    kNeedsTeacherSampled | kReadsBehavior | kReadsRhoGuards | kScoreFunction,                      \
    "rho (q(y)/p(y) - 1 + r) | rho (q(y)/p(y) - 1) | 0 | rho (1 - q(y)/p(y))",                     \
    "q/p - 1 - log q/p of the sampled token (Schulman's k3), differentiated as it stands, as "     \
    "GRPO does. It is never negative and has a low variance; its expected gradient is that of "    \
    "the forward KL.")                                                                             \
  X(kVopd, "vopd", Vopd,                                                                           \
    kNeedsSupport | kNeedsTeacherSampled | kReadsBehavior | kReadsRhoGuards | kScoreFunction,      \
    "rho r | -rho (r - l_norm) | 0 | rho (r - l_norm)",                                            \
    "sampled_token with the normalized loss as baseline (no gradient through it). It has less "    \
    "variance where the support holds most of the mass.")                                          \
  X(kForwardKl, "forward_kl", ForwardKl, kNeedsSupport | kNoDenseGradient,                         \
    "sum qbar_j log(qbar_j / pbar_j) | 0 | pbar_j - qbar_j | 0",                                   \
    "Forward KL of both distributions renormalized on the support: it covers the teacher's modes " \
    "and does not see the tail.")                                                                  \
  X(kEntropyAware, "entropy_aware", EntropyAware,                                                  \
    kNeedsSupport | kNeedsTeacherSampled | kNeedsTeacherEntropy | kReadsEntropyThreshold |         \
        kReadsBehavior | kReadsRhoGuards | kScoreFunction,                                         \
    "rho r, plus `forward_kl` where the teacher's entropy is above the threshold | -rho r | 0, "   \
    "or pbar_j - qbar_j | rho r",                                                                  \
    "Entropy-aware OPD (Jin et al. 2026, arXiv:2603.07079; paper, Related Work): sampled_token, "  \
    "plus forward_kl where the teacher's entropy is above entropy_threshold. It keeps diversity "  \
    "where several continuations are good.")                                                       \
  X(kForwardKlTail, "forward_kl_tail", ForwardKlTail, kNeedsSupport | kNeedsTeacherTail,           \
    "sum q_j log(q_j / p_j) + q_tail log(q_tail / p_tail) | 1 - q_tail/p_tail | p_j "              \
    "q_tail/p_tail - q_j | 0",                                                                     \
    "Forward KL on the support plus the tail token; with k = V it is the classic distillation "    \
    "loss.")                                                                                       \
  X(kJsd, "jsd", Jsd, kNeedsSupport | kNeedsTeacherTail | kReadsBeta,                              \
    "beta KL(q, M) + (1 - beta) KL(p, M), with the tail token | (1 - beta) (u_tail - U) | (1 - "   \
    "beta) p_j (u_j - u_tail) | 0",                                                                \
    "Generalized Jensen-Shannon divergence with the tail token and the weight beta for the "       \
    "teacher (GKD, Agarwal et al. 2024). It is bounded, and tends to the forward KL for a small "  \
    "beta and to the reverse KL for a large one.")                                                 \
  X(kCrossEntropy, "cross_entropy", CrossEntropy, kNeedsNothing, "-log p(y) | 1 | 0 | -1",         \
    "-log p(y): supervised fine-tuning on given responses; it needs no teacher.")                  \
  X(kPolicyGradient, "policy_gradient", PolicyGradient,                                            \
    kNeedsAdvantage | kReadsBehavior | kReadsRhoGuards | kReadsClip | kScoreFunction |             \
        kAllowsGivenResponses,                                                                     \
    "-rho A; with PPO's clip max(-rho A, -clip(rho) A) | rho A, 0 where the clip decides | 0 | "   \
    "-rho A, 0 where the clip decides",                                                            \
    "-rho A of the response's advantage A (the section reward), with PPO's two-sided clip on "     \
    "request: GRPO's loss. Name it to train on the reward alone. With another objective, a "       \
    "reward adds this term by itself. It is 0 on given responses.")                                \
  TAOPD_EXTRA_OBJECTIVES(X)

enum class ObjectiveKind : int32_t {
#define TAOPD_ENUMERATOR(kind, name, function, traits, formula, summary) kind,
  TAOPD_OBJECTIVES(TAOPD_ENUMERATOR)
#undef TAOPD_ENUMERATOR
};

// An objective with its parameters. Trivially copyable, so that kernels take it by value.
struct Objective : ObjectiveParameters {
  ObjectiveKind kind = ObjectiveKind::kTaOpd;
};

struct ObjectiveTerm {
  Objective objective;
  double weight = 1;
};

// sum_i weight_i objective_i; one objective is a combination of one. Trivially copyable, so that
// kernels take it by value.
struct ObjectiveTerms {
  ObjectiveTerms() = default;  // ta_opd
  // Implicit: an objective is a combination of one.
  ObjectiveTerms(const Objective& objective) { term[0].objective = objective; }

  int32_t num_terms = 1;  // 1..kMaxObjectiveTerms
  ObjectiveTerm term[kMaxObjectiveTerms];
};
static_assert(std::is_trivially_copyable_v<ObjectiveTerms>);

struct ObjectiveInfo {
  std::string_view name;
  ObjectiveKind kind;
  uint32_t traits;           // ObjectiveTraits, or-ed together
  std::string_view formula;  // "loss | a | b_j | c"
  std::string_view summary;
};

// All objectives in the order of their kinds, for help texts, tests and configuration checks.
inline constexpr std::array kObjectives = {
#define TAOPD_INFO(kind, name, function, traits, formula, summary) \
  ObjectiveInfo{name, ObjectiveKind::kind, traits, formula, summary},
    TAOPD_OBJECTIVES(TAOPD_INFO)
#undef TAOPD_INFO
};

constexpr const ObjectiveInfo& InfoOf(const Objective& objective) {
  return kObjectives[static_cast<std::size_t>(objective.kind)];
}

// The traits of all terms, or-ed together: those that some term has. Ask each term for a property
// that all of them must have, as HasDenseGradient does.
constexpr uint32_t TraitsOf(const ObjectiveTerms& terms) {
  uint32_t traits = kNeedsNothing;
  for (int32_t i = 0; i < terms.num_terms; ++i) traits |= InfoOf(terms.term[i].objective).traits;
  return traits;
}

// Whether `a` may differ from 0 for some row. If not, the gradient needs no product with the whole
// vocabulary.
constexpr bool HasDenseGradient(const ObjectiveTerms& terms) {
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    if (!(InfoOf(terms.term[i].objective).traits & kNoDenseGradient)) return true;
  }
  return false;
}

// Returns the objective of that name with default parameters, or nullopt if there is none.
constexpr std::optional<Objective> FindObjective(std::string_view name) {
  for (const ObjectiveInfo& info : kObjectives) {
    if (info.name != name) continue;
    Objective objective;
    objective.kind = info.kind;
    return objective;
  }
  return std::nullopt;
}

// Evaluates the loss and its gradient for one row. All results are finite if the log-probabilities
// are at most 0 or -inf; see kLogProbFloor for zero mass. REQUIRES: the row has what
// InfoOf(objective).traits names, and result->support_gradient has k places.
template <typename Real>
TAOPD_HOST_DEVICE inline void EvaluateObjective(const Objective& objective,
                                                const ObjectiveRow<Real>& row,
                                                ObjectiveResult<Real>* result) {
  result->loss = result->a = result->c = 0;
  result->num_limited = 0;
  result->num_truncated = 0;
  result->num_masked = 0;
  result->num_clipped = 0;
  switch (objective.kind) {
#define TAOPD_CASE(kind, name, function, traits, formula, summary) \
  case ObjectiveKind::kind:                                        \
    return objectives::function(row, objective, result);
    TAOPD_OBJECTIVES(TAOPD_CASE)
#undef TAOPD_CASE
  }
}

// Evaluates a combination for one row: the weighted sums of the terms' loss, a, c and
// support_gradient, and term_loss. scratch[k] is the caller's; it may be null if num_terms is 1.
// REQUIRES: the row has what TraitsOf(terms) names, and result->support_gradient has k places.
template <typename Real>
TAOPD_HOST_DEVICE inline void EvaluateObjectives(const ObjectiveTerms& terms,
                                                 const ObjectiveRow<Real>& row, Real* scratch,
                                                 ObjectiveResult<Real>* result) {
  EvaluateObjective(terms.term[0].objective, row, result);
  const Real first_weight = static_cast<Real>(terms.term[0].weight);
  if (first_weight != 1) {
    result->loss *= first_weight;
    result->a *= first_weight;
    result->c *= first_weight;
    for (int32_t j = 0; j < row.k; ++j) result->support_gradient[j] *= first_weight;
  }
  result->term_loss[0] = result->loss;
  for (int32_t i = 1; i < kMaxObjectiveTerms; ++i) result->term_loss[i] = 0;
  for (int32_t i = 1; i < terms.num_terms; ++i) {
    const Real weight = static_cast<Real>(terms.term[i].weight);
    ObjectiveResult<Real> term;
    term.support_gradient = scratch;
    EvaluateObjective(terms.term[i].objective, row, &term);
    result->term_loss[i] = weight * term.loss;
    result->loss += weight * term.loss;
    result->a += weight * term.a;
    result->c += weight * term.c;
    for (int32_t j = 0; j < row.k; ++j) result->support_gradient[j] += weight * scratch[j];
    result->num_limited += term.num_limited;
    result->num_truncated += term.num_truncated;
    result->num_masked += term.num_masked;
    result->num_clipped += term.num_clipped;
  }
}

}  // namespace taopd
