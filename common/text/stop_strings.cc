#include "common/text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "common/text/unicode/unicode.h"

namespace taopd {
absl::Status ValidateStopStrings(const std::vector<std::string>& stop_strings) {
  if (stop_strings.size() > kMaxStopStrings) {
    return InvalidArgument("stop has ", stop_strings.size(), " strings: at most ", kMaxStopStrings);
  }
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    if (stop_strings[i].empty()) {
      return InvalidArgument("stop[", i, "] is empty: stop cannot contain an empty string");
    }
    if (stop_strings[i].size() > kMaxStopStringBytes) {
      return InvalidArgument("stop[", i, "] has ", stop_strings[i].size(), " bytes: at most ",
                             kMaxStopStringBytes);
    }
    if (!IsValidUtf8(stop_strings[i])) return InvalidArgument("stop[", i, "] is not UTF-8");
  }
  return absl::OkStatus();
}

bool StopStringMatcher::Append(std::string_view piece, bool may_stop) {
  const size_t old_size = text_.size();
  text_.append(piece);
  size_t first_end = std::string::npos;
  for (size_t i = 0; may_stop && i < stop_strings_.size(); ++i) {
    const std::string& stop = stop_strings_[i];
    // An earlier call has looked for stop strings that end in the old text.
    const size_t begin = text_.find(stop, old_size >= stop.size() ? old_size - stop.size() + 1 : 0);
    if (begin == std::string::npos || begin + stop.size() >= first_end) continue;
    first_end = begin + stop.size();
    matched_ = i;
  }
  if (matched_) {
    text_.resize(include_in_output_ ? first_end : first_end - stop_strings_[*matched_].size());
    num_streamable_ = text_.size();
    return true;
  }
  HoldBack(old_size);
  const size_t held = held_.empty() ? 0 : *std::max_element(held_.begin(), held_.end());
  num_streamable_ = text_.size() - std::max(held, IncompleteSuffixBytes(text_));
  return false;
}

void StopStringMatcher::HoldBack(size_t begin) {
  for (size_t s = 0; s < stop_strings_.size(); ++s) {
    const std::string_view stop = stop_strings_[s];
    size_t& held = held_[s];
    for (size_t end = begin + 1; end <= text_.size(); ++end) {
      // A byte adds at most one to `held`, and every step of the inner loop takes one away, so no
      // more steps than bytes are made.
      const std::string_view text = std::string_view(text_).substr(0, end);
      size_t num = std::min(held + 1, stop.size() - 1);
      while (num > 0 && !text.ends_with(stop.substr(0, num))) --num;
      held = num;
    }
  }
}

}  // namespace taopd
