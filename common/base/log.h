// Log lines are events with keys: "step done step=12 loss=0.3412 tokens=51234". They go to standard
// error through spdlog. Any thread may log.
//
// A value that contains anything except printable ASCII without spaces is quoted and escaped, so
// that a client's text cannot forge a line. This header includes neither spdlog nor fmt, so that
// files that include LibTorch, which contains its own fmt, can use it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/status.h"

namespace taopd {

// Returns a number as text with six significant digits.
std::string SixDigits(double number);

struct LogField {
  std::string key;
  std::string value;

  template <typename T>
  LogField(std::string_view k, const T& v) : key(k) {
    if constexpr (std::is_same_v<T, bool>) {
      value = v ? "true" : "false";
    } else if constexpr (std::is_floating_point_v<T>) {
      value = SixDigits(v);
    } else if constexpr (std::is_same_v<T, absl::Status>) {
      value = v.ToString();
    } else {
      value = Concat(v);
    }
  }
};

using LogFields = std::initializer_list<LogField>;

void LogDebug(std::string_view event, LogFields fields = {});
void LogInfo(std::string_view event, LogFields fields = {});
void LogWarning(std::string_view event, LogFields fields = {});
void LogError(std::string_view event, LogFields fields = {});

// Sets the least severe level that is printed: "debug", "info" (the default), "warning" or "error".
// Returns INVALID_ARGUMENT for anything else.
absl::Status SetLogLevel(std::string_view level);

// Returns the part of a line that follows the time and the level. Public for tests.
std::string FormatLogLine(std::string_view event, LogFields fields);

}  // namespace taopd
