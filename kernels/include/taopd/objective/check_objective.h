// The check of whether a combination of objectives can be evaluated, and its name. Host code uses
// these functions on a combination from a configuration or a caller.
#pragma once

#include <cmath>
#include <sstream>
#include <string>

#include "taopd/objective/objective.h"
#include "taopd/objective/objective_parameters.h"

namespace taopd {

// Returns an empty string if the number of terms, the weights and the parameters that the terms
// read are in range. Otherwise returns the first problem with field, value and limit, such as "beta
// is 1, must be above 0 and below 1 for objective jsd".
inline std::string ProblemOf(const ObjectiveTerms& terms) {
  std::ostringstream problem;
  if (terms.num_terms < 1 || terms.num_terms > kMaxObjectiveTerms) {
    problem << "num_terms is " << terms.num_terms << ", must be 1 to " << kMaxObjectiveTerms;
    return problem.str();
  }
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    const Objective& objective = terms.term[i].objective;
    const ObjectiveInfo& info = InfoOf(objective);
    const double weight = terms.term[i].weight;
    if (!std::isfinite(weight) || weight == 0) {
      problem << "weight is " << weight << ", must be finite and not 0, for objective "
              << info.name;
      return problem.str();
    }
    for (const ObjectiveParameter& parameter : kObjectiveParameters) {
      const double value = objective.*parameter.value;
      if (!(info.needs & parameter.read_by) || parameter.IsInRange(value)) continue;
      problem << parameter.name << " is " << value << ", must be " << parameter.range
              << " for objective " << info.name;
      return problem.str();
    }
  }
  return "";
}

// Returns the terms' names, with their weights where those are not 1: "ta_opd + 0.1 cross_entropy".
inline std::string NameOf(const ObjectiveTerms& terms) {
  std::ostringstream name;
  for (int32_t i = 0; i < terms.num_terms; ++i) {
    if (i > 0) name << " + ";
    if (terms.term[i].weight != 1) name << terms.term[i].weight << " ";
    name << InfoOf(terms.term[i].objective).name;
  }
  return name.str();
}

}  // namespace taopd
