// Log lines are events with keys: "step done step=12 loss=0.3412 tokens=51234".
// Lines go to standard error through spdlog; any thread may log. This header includes neither
// spdlog nor fmt, so that files which see LibTorch (with its own fmt) can use it.
// Values are quoted and escaped where they hold anything but printable ASCII without spaces, so a
// client's text cannot forge a line.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/status.h"

namespace taopd {

struct LogField {
  std::string key;
  std::string value;

  template <typename T>
  LogField(std::string_view k, const T& v) : key(k) {
    if constexpr (std::is_same_v<T, bool>) {
      value = v ? "true" : "false";
    } else if constexpr (std::is_floating_point_v<T>) {
      std::ostringstream out;
      out.precision(6);
      out << v;
      value = out.str();
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

// "debug", "info", "warning" or "error"; anything else is refused. Default: info.
absl::Status SetLogLevel(std::string_view level);

// The text after the time and level, as the functions above print it (for tests).
std::string FormatLogLine(std::string_view event, LogFields fields);

}  // namespace taopd
