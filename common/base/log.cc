#include "common/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <sstream>

namespace taopd {
namespace {

spdlog::logger& Logger() {
  // Leaked on purpose: threads may log while static objects are being destroyed.
  static spdlog::logger* logger = [] {
    auto* created =
        new spdlog::logger("taopd", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%L%$ %v");
    created->flush_on(spdlog::level::info);
    return created;
  }();
  return *logger;
}

bool IsPlain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](unsigned char c) {
    return c > 0x20 && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
}

void AppendQuoted(std::string_view value, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (unsigned char c : value) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c < 0x20 || c >= 0x7f) {
      out->append("\\x");
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
    } else {
      out->push_back(static_cast<char>(c));
    }
  }
  out->push_back('"');
}

void Log(spdlog::level::level_enum level, std::string_view event, LogFields fields) {
  if (!Logger().should_log(level)) return;
  const std::string line = FormatLogLine(event, fields);
  Logger().log(level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace

std::string SixDigits(double number) {
  std::ostringstream out;
  out.precision(6);
  out << number;
  return out.str();
}

std::string FormatLogLine(std::string_view event, LogFields fields) {
  std::string line(event);
  for (const LogField& field : fields) {
    line.push_back(' ');
    line.append(field.key);
    line.push_back('=');
    if (IsPlain(field.value)) {
      line.append(field.value);
    } else {
      AppendQuoted(field.value, &line);
    }
  }
  return line;
}

void LogDebug(std::string_view event, LogFields fields) {
  Log(spdlog::level::debug, event, fields);
}
void LogInfo(std::string_view event, LogFields fields) { Log(spdlog::level::info, event, fields); }
void LogWarning(std::string_view event, LogFields fields) {
  Log(spdlog::level::warn, event, fields);
}
void LogError(std::string_view event, LogFields fields) { Log(spdlog::level::err, event, fields); }

absl::Status SetLogLevel(std::string_view level) {
  if (level == "debug") {
    Logger().set_level(spdlog::level::debug);
  } else if (level == "info") {
    Logger().set_level(spdlog::level::info);
  } else if (level == "warning") {
    Logger().set_level(spdlog::level::warn);
  } else if (level == "error") {
    Logger().set_level(spdlog::level::err);
  } else {
    return InvalidArgument("log level \"", level, "\" is not one of debug, info, warning, error");
  }
  return absl::OkStatus();
}

}  // namespace taopd
