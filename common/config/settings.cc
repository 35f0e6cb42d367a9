#include "common/config/settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "common/base/memory.h"

namespace taopd {
namespace {

// Returns the shortest text that reads back as the same double. It always has a fraction or an
// exponent, so that it is not mistaken for an integer.
std::string NumberText(double value) {
  if (std::isinf(value)) return value > 0 ? ".inf" : "-.inf";
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// Returns double-quoted YAML, whose escapes are those of JSON as far as they are used here.
std::string QuotedText(const std::string& value) {
  std::string text = "\"";
  for (char c : value) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else {
      text += c;
    }
  }
  return text + "\"";
}

std::string ScalarText(bool value) { return value ? "true" : "false"; }
std::string ScalarText(int64_t value) { return std::to_string(value); }
std::string ScalarText(double value) { return NumberText(value); }
std::string ScalarText(const std::string& value) { return QuotedText(value); }

template <typename T>
std::string ScalarText(const std::optional<T>& value) {
  return value ? ScalarText(*value) : "auto";
}

template <typename T>
std::string ScalarText(const std::vector<T>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += ScalarText(values[i]);
  }
  return text + "]";
}

std::string ScalarText(const EnumSetting& setting) { return QuotedText(setting.word()); }

std::string ScalarText(SectionList& list) {
  std::string text = "[";
  for (size_t i = 0; i < list.size(); ++i) {
    text += i > 0 ? ", {" : "{";
    const SettingTable item = list.Item(i);
    for (size_t s = 0; s < item.settings().size(); ++s) {
      const Setting& setting = item.settings()[s];
      text += Concat(s > 0 ? ", " : "", setting.path, ": ", SettingText(setting.pointer));
    }
    text += "}";
  }
  return text + "]";
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

}  // namespace

absl::Status CheckSettings(const SettingTable& table) {
  for (const Setting& setting : table.settings()) {
    for (size_t i = 0; setting.list && i < setting.list->size(); ++i) {
      TAOPD_RETURN_IF_ERROR(
          Annotate(CheckSettings(setting.list->Item(i)), Concat(setting.path, "[", i, "]")));
    }
    if (!setting.check) continue;
    TAOPD_RETURN_IF_ERROR(
        Annotate(setting.check(), Concat(setting.path, " = ", SettingText(setting.pointer))));
  }
  return absl::OkStatus();
}

std::string SettingText(const SettingPointer& pointer) {
  return std::visit([](auto* value) { return ScalarText(*value); }, pointer);
}

std::string SettingTypeName(const SettingPointer& pointer) {
  static const char* const kNames[] = {"boolean",
                                       "integer",
                                       "number",
                                       "text",
                                       "list of text",
                                       "list of integers",
                                       "list of numbers",
                                       "list of sections",
                                       "integer or auto",
                                       "number or auto",
                                       "text"};
  static_assert(std::size(kNames) == std::variant_size_v<SettingPointer>);
  return kNames[pointer.index()];
}

std::string DidYouMean(const std::string& unknown, const std::vector<std::string>& known) {
  const std::string* best = nullptr;
  // Almost any two short words are within two edits of each other.
  size_t best_distance = unknown.size() < 4 ? 2 : std::max<size_t>(2, unknown.size() / 3) + 1;
  for (const std::string& candidate : known) {
    if (candidate.empty()) continue;
    const size_t distance = EditDistance(unknown, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = &candidate;
    }
  }
  return best ? Concat(" (did you mean \"", *best, "\"?)") : "";
}

SettingCheck<std::string> OneOf(std::vector<std::string> choices) {
  return [choices = std::move(choices)](const std::string& value) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) return absl::OkStatus();
    std::string list;
    for (const std::string& choice : choices) {
      list += (list.empty() ? "" : ", ") + (choice.empty() ? "\"\"" : choice);
    }
    return InvalidArgument("must be one of ", list, DidYouMean(value, choices));
  };
}

SettingCheck<std::string> MemorySize() {
  return [](const std::string& value) { return ParseMemoryBytes(value).status(); };
}

SettingCheck<std::string> NotEmpty() {
  return Must<std::string>("be given", [](const std::string& value) { return !value.empty(); });
}

}  // namespace taopd
