// `taopd-trainer objective`: computes the losses and gradients of cases in a file in float64, so
// that another implementation of an objective can be checked against this one.
//
// Each line of the file is one case, a JSON object. V is the size of its vocabulary and k that of
// its support:
//   id                        text or number, copied to the result
//   objective                 a name that `taopd-trainer objectives` lists
//   terms                     [{name, weight}, ...], instead of objective
//   beta, max_rho, ...        optional; any of kObjectiveParameters
//   logits                    [V] the student's logits
//   support_ids               [k]
//   teacher_logprobs          [k] null stands for a probability of zero
//   teacher_log_tail          if null or absent, it is derived from the support's mass with the
//                             paper's clamp
//   teacher_full_logprobs     [V] instead of the three above, for objectives that need the whole
//                             vocabulary
//   sampled_id                the response token
//   teacher_logprob_sampled   the teacher's log-prob of the response token
//   behavior_logprob          the behavior policy's log-prob of it; if null or absent, the case is
//                             on-policy
//   teacher_entropy           in nats
//   advantage                 of the response, for policy_gradient
//   expected                  optional {loss, grad[V], ...}; the differences to it are reported
//   source, vocab, k          optional; vocab and k must be V and k
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "taopd/head/dense_row.h"

namespace taopd {

struct ObjectiveCase {
  nlohmann::json id;
  ObjectiveTerms objective;
  cpu::DenseRow row;
  nlohmann::json expected;  // null if the case has none
};

// Returns INVALID_ARGUMENT with the field, the value and the limit if the case cannot be evaluated.
absl::StatusOr<ObjectiveCase> ReadObjectiveCase(const nlohmann::json& json);

// Returns {"id", "loss", "grad", "metrics"} and, if the case has expected values, "loss_difference"
// and "grad_difference" (the largest absolute difference).
absl::StatusOr<nlohmann::ordered_json> EvaluateObjectiveCase(const ObjectiveCase& one);

struct ObjectiveCasesSummary {
  int64_t num_cases = 0;
  int64_t num_refused = 0;   // refused cases, whose results are {"id", "error"}
  int64_t num_expected = 0;  // cases with expected values
  double max_loss_difference = 0;
  double max_grad_difference = 0;
};

// Replaces the output file with one result per line, in the order of the input. Returns an error if
// a file cannot be read or written, or if a line is not valid JSON.
absl::StatusOr<ObjectiveCasesSummary> EvaluateObjectiveCases(const std::string& input_path,
                                                             const std::string& output_path);

}  // namespace taopd
