// The parameters of objectives by name, with their ranges, for code that reads them from a
// configuration or a file. Their defaults are those of ObjectiveParameters. Host code only.
//
// To add a parameter: a member of ObjectiveParameters (taopd/objective/objective_row.h), a bit of
// ObjectiveNeeds and a row of kObjectiveParameters. The checks, the trainer's configuration and
// `taopd-trainer objective` follow from the row.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include "taopd/objective/objective.h"

namespace taopd {

struct ObjectiveParameter {
  // An alias, because the host compiler warns about the declaration that nvcc makes of a member
  // pointer.
  using Member = double ObjectiveParameters::*;

  std::string_view name;
  Member value;
  uint32_t read_by;  // the bit of ObjectiveNeeds of the objectives that read it
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

}  // namespace taopd
