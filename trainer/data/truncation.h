// Shortening of over-long prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"

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
// Parses "error", "left", "right" or "middle". Returns INVALID_ARGUMENT for any other name.
absl::StatusOr<Truncation> ParseTruncation(const std::string& name);

// Shortens `ids` to max_length tokens; returns shorter ones unchanged. REQUIRES: `truncation` is
// not kError.
std::vector<int32_t> TruncateIds(std::vector<int32_t> ids, int64_t max_length,
                                 Truncation truncation);

}  // namespace taopd
