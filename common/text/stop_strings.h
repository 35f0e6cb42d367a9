// Finds stop strings in text that arrives in pieces, wherever the pieces are cut, and tells how
// much of the text can be sent before the next piece arrives.
//
// A server decodes the ids that a request generates (common/text/tokenizer/incremental_decoder.h),
// feeds the pieces to a matcher, and ends the request when Append returns true.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace taopd {

inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxStopStringBytes = 1024;

// Returns INVALID_ARGUMENT if there are too many stop strings, or if one is empty, too long or not
// UTF-8.
absl::Status ValidateStopStrings(const std::vector<std::string>& stop_strings);

// Not thread-safe. All positions are bytes.
class StopStringMatcher {
 public:
  // If include_in_output, the text ends with the stop string, otherwise before it. There may be no
  // stop strings. REQUIRES: ValidateStopStrings(stop_strings) is OK.
  StopStringMatcher(std::vector<std::string> stop_strings, bool include_in_output)
      : stop_strings_(std::move(stop_strings)),
        include_in_output_(include_in_output),
        held_(stop_strings_.size(), 0) {}

  // Appends UTF-8 text. Returns true if a stop string is now complete: the one that ends first, and
  // of several that end at the same byte the first in the list. The result does not depend on how
  // the text is divided into pieces. If may_stop is false, a stop string that ends in this piece
  // does not count (vLLM ignores those that end within the first min_tokens tokens). REQUIRES:
  // Append has not returned true.
  bool Append(std::string_view piece, bool may_stop = true);

  // The text so far. Once a stop string is complete, the text is cut before or after it.
  const std::string& text() const { return text_; }
  // The index of the complete stop string, if there is one.
  std::optional<size_t> matched() const { return matched_; }
  // The number of bytes of text() that no later piece can cut away, in whole characters. It is all
  // of text() once a stop string is complete. At the end of a text that did not stop, the caller
  // sends the rest.
  size_t num_streamable() const { return num_streamable_; }

 private:
  // Updates held_ for the bytes of text_ from `begin` on. On average, a byte costs at most two
  // comparisons of up to a string's length for each string.
  void HoldBack(size_t begin);

  const std::vector<std::string> stop_strings_;
  const bool include_in_output_;
  std::string text_;
  // For each stop string, the length of its longest proper prefix that is a suffix of the text.
  std::vector<size_t> held_;
  std::optional<size_t> matched_;
  size_t num_streamable_ = 0;
};

}  // namespace taopd
