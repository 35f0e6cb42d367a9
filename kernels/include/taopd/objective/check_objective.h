// The parameters of objectives by name, with their ranges, and the check of whether a combination
// of objectives can be evaluated. For host code that reads objectives from a configuration or a
// file.
//
// To add a parameter, add a member with its default to ObjectiveParameters
// (taopd/objective/objective_row.h), a bit to ObjectiveTraits and a row to kObjectiveParameters.
// The checks, the trainer's configuration and `taopd-trainer objective` follow from the row.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "taopd/objective/objective.h"

namespace taopd {

struct ObjectiveParameter {
  // An alias, because the host compiler warns about the declaration that nvcc makes of a member
  // pointer.
  using Member = double ObjectiveParameters::*;

  std::string_view name;
  Member value;
  uint32_t read_by;  // the bit of ObjectiveTraits of the objectives that read it
  std::string_view summary;
  // A valid value is between `low` and `high`; `open` excludes both.
  double low, high;
  bool open;
  std::string_view range;  // in words, to follow "must be"

  // False for a NaN.
  constexpr bool IsInRange(double x) const {
    return open ? x > low && x < high : x >= low && x <= high;
  }
};

inline constexpr ObjectiveParameter kObjectiveParameters[] = {
    {"beta", &ObjectiveParameters::beta, kReadsBeta, "Weight of the teacher in jsd's mixture.", 0,
     1, /*open=*/true, "above 0 and below 1"},
    {"entropy_threshold", &ObjectiveParameters::entropy_threshold, kReadsEntropyThreshold,
     "entropy_aware adds its forward KL where the teacher's entropy is above it, in nats.", 0,
     std::numeric_limits<double>::infinity(), /*open=*/false, "at least 0"},
    {"max_rho", &ObjectiveParameters::max_rho, kReadsRhoGuards,
     "Truncate the importance ratio of reused batches at this number, which biases the loss. 0 "
     "means never.",
     0, std::numeric_limits<double>::infinity(), /*open=*/false, "at least 0"},
    {"mask_rho_below", &ObjectiveParameters::mask_rho_below, kReadsRhoGuards,
     "Mask the sampled token's part if its importance ratio is below this number, such as 0.5. 0 "
     "means never.",
     0, 1, /*open=*/false, "from 0 to 1"},
    {"mask_rho_above", &ObjectiveParameters::mask_rho_above, kReadsRhoGuards,
     "Mask the sampled token's part if its importance ratio is above this number, such as 2. 0 "
     "means never.",
     0, std::numeric_limits<double>::infinity(), /*open=*/false, "at least 0"},
    {"clip_low", &ObjectiveParameters::clip_low, kReadsClip,
     "PPO's lower clip, such as 0.2: a ratio below 1 - clip_low with a negative advantage gives no "
     "gradient. 0 means never.",
     0, 1, /*open=*/false, "from 0 to 1"},
    {"clip_high", &ObjectiveParameters::clip_high, kReadsClip,
     "PPO's upper clip, such as 0.28: a ratio above 1 + clip_high with a positive advantage gives "
     "no gradient. 0 means never.",
     0, std::numeric_limits<double>::infinity(), /*open=*/false, "at least 0"},
};

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
      if (!(info.traits & parameter.read_by) || parameter.IsInRange(value)) continue;
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
