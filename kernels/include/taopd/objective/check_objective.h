// Whether a combination of objectives can be evaluated at all; for host code that takes one from a
// configuration or a caller.
#pragma once

#include <cmath>
#include <sstream>
#include <string>

#include "taopd/objective/objective.h"

namespace taopd {

// Empty when the number of terms, the weights and the parameters that the terms read are in range;
// otherwise the first problem with field, value and limit, like "beta is 1, must be above 0 and
// below 1 for objective jsd".
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
    } else if ((info.needs & kReadsBeta) && !(objective.beta > 0 && objective.beta < 1)) {
      problem << "beta is " << objective.beta << ", must be above 0 and below 1 for objective "
              << info.name;
    } else if ((info.needs & kReadsEntropyThreshold) && !(objective.entropy_threshold >= 0)) {
      problem << "entropy_threshold is " << objective.entropy_threshold
              << ", must be at least 0 for objective " << info.name;
    } else if ((info.needs & kReadsMaxRho) && !(objective.max_rho >= 0)) {
      problem << "max_rho is " << objective.max_rho << ", must be at least 0 for objective "
              << info.name;
    }
    if (!problem.str().empty()) return problem.str();
  }
  return "";
}

// The terms' names with their weights where those are not 1: "ta_opd + 0.1 cross_entropy".
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
