// Shortening of over-long prompts.
#pragma once

#include <cstdint>
#include <vector>

#include "common/config/settings.h"

namespace taopd {

// The treatment of a prompt of more than max_prompt_length tokens. The names are those of verl's
// data.truncation.
enum class Truncation {
  kError,   // the row is an error
  kLeft,    // the first tokens are cut off
  kRight,   // the last tokens are cut off
  kMiddle,  // the tokens in the middle are cut out; if the number kept is odd, the end keeps one
            // more
};
inline EnumNames<Truncation> NamesOf(Truncation) {
  return {{Truncation::kError, "error"},
          {Truncation::kLeft, "left"},
          {Truncation::kRight, "right"},
          {Truncation::kMiddle, "middle"}};
}

// Shortens `ids` to max_length tokens; returns shorter ones unchanged. REQUIRES: `truncation` is
// not kError.
std::vector<int32_t> TruncateIds(std::vector<int32_t> ids, int64_t max_length,
                                 Truncation truncation);

}  // namespace taopd
