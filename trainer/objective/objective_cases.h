// `taopd-trainer objective`: losses and gradients of cases from a file, in float64, so that another
// implementation of an objective can be checked against this one.
//
// A case is one JSON object a line:
//   id                       text or number, copied to the result
//   objective                a name of `taopd-trainer objectives`; or terms: [{name, weight}, ...]
//   beta, entropy_threshold, max_rho    optional, for the objectives that read them
//   logits[V]                the student's
//   support_ids[k], teacher_logprobs[k]   null is a probability of zero
//   teacher_log_tail         null or absent: made from the support's mass with the paper's clamp
//   teacher_full_logprobs[V] instead of the three before, for objectives of the whole vocabulary
//   sampled_id, teacher_logprob_sampled, behavior_logprob (null or absent: on-policy)
//   teacher_entropy          nats
//   expected                 optional {loss, grad[V], ...}: the differences to these are reported
//   source, vocab, k         optional; vocab and k must be those of the arrays
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "kernels/cpu/head/dense_row.h"

namespace taopd {

struct ObjectiveCase {
  nlohmann::json id;
  ObjectiveTerms objective;
  cpu::DenseRow row;
  nlohmann::json expected;  // null: none
};

// INVALID_ARGUMENT with field, value and limit for a case that cannot be evaluated.
absl::StatusOr<ObjectiveCase> ReadObjectiveCase(const nlohmann::json& json);

// {"id", "loss", "grad", "metrics"}, and with expected values "loss_difference" and
// "grad_difference" (the largest absolute one).
absl::StatusOr<nlohmann::ordered_json> EvaluateObjectiveCase(const ObjectiveCase& one);

struct ObjectiveCasesSummary {
  int64_t num_cases = 0;
  int64_t num_refused = 0;   // results are {"id", "error"}
  int64_t num_expected = 0;  // cases with expected values
  double max_loss_difference = 0;
  double max_grad_difference = 0;
};

// Writes one result a line, in the order of the input, replacing the output file. An error for
// files that cannot be read or written and lines that are not JSON objects.
absl::StatusOr<ObjectiveCasesSummary> EvaluateObjectiveCases(const std::string& input_path,
                                                             const std::string& output_path);

}  // namespace taopd
