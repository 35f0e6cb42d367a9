#include "common/config/yaml.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <set>

#include "common/io/file.h"

namespace taopd {
namespace {

constexpr int kMaxDepth = 16;  // settings nest two deep; refuses texts made to exhaust the stack

std::string Where(const std::string& source, const YAML::Node& node) {
  return node.Mark().line < 0 ? source : Concat(source, ":", node.Mark().line + 1);
}

// Returns the value that the text describes; null if there is none. Refuses text behind it, such as
// a second document, which YAML::Load would ignore.
absl::StatusOr<YAML::Node> LoadYaml(const std::string& text, const std::string& source) {
  try {
    YAML::Node value;
    for (const YAML::Node& document : YAML::LoadAll(text)) {
      if (document.IsNull()) continue;
      if (!value.IsNull())
        return InvalidArgument(Where(source, document), ": text follows the end of the document");
      value.reset(document);
    }
    return value;
  } catch (const YAML::Exception& error) {
    return InvalidArgument(source, ":", error.mark.line + 1, ": not YAML: ", error.msg);
  }
}

// "!" is yaml-cpp's tag of a quoted scalar, "?" that of a plain one.
bool IsQuoted(const YAML::Node& node) { return node.Tag() == "!"; }

absl::Status ReadScalar(const YAML::Node& node, bool* out) {
  const std::string text = node.Scalar();
  if (!IsQuoted(node) && (text == "true" || text == "false")) {
    *out = text == "true";
    return absl::OkStatus();
  }
  return InvalidArgument("\"", text, "\" is not true or false");
}

absl::Status ReadScalar(const YAML::Node& node, int64_t* out) {
  const std::string text = node.Scalar();
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *out);
  if (IsQuoted(node) || result.ec != std::errc() || result.ptr != end) {
    return InvalidArgument("\"", text, "\" is not an integer");
  }
  return absl::OkStatus();
}

absl::Status ReadScalar(const YAML::Node& node, double* out) {
  const std::string text = node.Scalar();
  if (!IsQuoted(node) && (text == ".inf" || text == "-.inf")) {
    *out = std::numeric_limits<double>::infinity() * (text[0] == '-' ? -1 : 1);
    return absl::OkStatus();
  }
  const char* begin = text.data() + (text.size() > 1 && text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(begin, end, *out);
  // from_chars also reads "inf", "nan" and "nan(1)".
  if (IsQuoted(node) || result.ec != std::errc() || result.ptr != end || !std::isfinite(*out)) {
    return InvalidArgument("\"", text, "\" is not a number");
  }
  return absl::OkStatus();
}

absl::Status ReadScalar(const YAML::Node& node, std::string* out) {
  *out = node.Scalar();
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadScalar(const YAML::Node& node, std::optional<T>* out) {
  if (!IsQuoted(node) && node.Scalar() == "auto") {
    *out = std::nullopt;
    return absl::OkStatus();
  }
  T value{};
  const absl::Status status = ReadScalar(node, &value);
  if (!status.ok()) return InvalidArgument(std::string(status.message()), ", and not auto");
  *out = value;
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadValue(const YAML::Node& node, T* out) {
  if (!node.IsScalar()) return InvalidArgument("a single value is expected");
  return ReadScalar(node, out);
}

template <typename T>
absl::Status ReadValue(const YAML::Node& node, std::vector<T>* out) {
  if (!node.IsSequence()) return InvalidArgument("a list is expected, as in [a, b]");
  std::vector<T> values;
  for (const YAML::Node& item : node) {
    T value{};
    TAOPD_RETURN_IF_ERROR(ReadValue(item, &value));
    values.push_back(std::move(value));
  }
  *out = std::move(values);
  return absl::OkStatus();
}

absl::Status ReadMap(const YAML::Node& map, const std::string& prefix, const std::string& source,
                     int depth, const SettingTable& table);

absl::Status ReadValue(const YAML::Node& node, SectionList* out) {
  if (!node.IsSequence())
    return InvalidArgument("a list of sections is expected, as in [{name: a}, {name: b}]");
  out->Reset(node.size());
  for (size_t i = 0; i < node.size(); ++i) {
    const std::string place = Concat("[", i, "]");
    if (!node[i].IsMap()) return InvalidArgument(place, ": a section is expected, as in {name: a}");
    TAOPD_RETURN_IF_ERROR(ReadMap(node[i], "", place, 0, out->Item(i)));
  }
  return absl::OkStatus();
}

absl::Status ReadValue(const YAML::Node& node, EnumSetting* out) {
  return node.IsScalar() ? out->Set(node.Scalar()) : InvalidArgument("a single value is expected");
}

absl::Status AssignNode(const YAML::Node& node, const Setting& setting) {
  if (!node.IsDefined() || node.IsNull()) {
    return InvalidArgument(setting.path, ": no value is given (", SettingTypeName(setting.pointer),
                           ")");
  }
  const absl::Status status =
      std::visit([&](auto* value) { return ReadValue(node, value); }, setting.pointer);
  const bool is_word = node.IsScalar() && std::holds_alternative<EnumSetting*>(setting.pointer);
  return Annotate(status,
                  is_word ? Concat(setting.path, " = \"", node.Scalar(), "\"") : setting.path);
}

const Setting* Find(const SettingTable& table, const std::string& path) {
  for (const Setting& setting : table.settings()) {
    if (setting.path == path) return &setting;
  }
  return nullptr;
}

bool IsSection(const SettingTable& table, const std::string& path) {
  return std::any_of(table.sections().begin(), table.sections().end(),
                     [&](const SettingSection& section) { return section.path == path; });
}

// Returns the names directly under `prefix` (e.g. "optimizer."), for messages.
std::vector<std::string> NamesUnder(const SettingTable& table, const std::string& prefix) {
  std::vector<std::string> names;
  auto add = [&](const std::string& path) {
    if (path.compare(0, prefix.size(), prefix) != 0) return;
    const std::string name = path.substr(prefix.size());
    if (name.find('.') == std::string::npos) names.push_back(name);
  };
  for (const Setting& setting : table.settings()) add(setting.path);
  for (const SettingSection& section : table.sections()) add(section.path);
  return names;
}

// Suggests, for the unknown key prefix + name, the first of these that exists:
//   - a similar path, if the section itself is unknown: objectve.name -> objective.name
//   - the same name elsewhere, if the section is unknown or left out: lr -> optimizer.lr
//   - a similar name in the same section
// A key of a section that exists gets no other suggestion: optimizer.name is not meant as run.name.
std::string Suggestion(const SettingTable& table, const std::string& prefix,
                       const std::string& name) {
  const bool has_section = !prefix.empty() && IsSection(table, prefix.substr(0, prefix.size() - 1));
  if (!prefix.empty() && !has_section) {
    std::vector<std::string> paths;
    for (const Setting& setting : table.settings()) paths.push_back(setting.path);
    if (std::string similar = DidYouMean(prefix + name, paths); !similar.empty()) return similar;
  }
  for (const Setting& setting : table.settings()) {
    const size_t dot = setting.path.rfind('.');
    if (!has_section && dot != std::string::npos && setting.path.substr(dot + 1) == name) {
      return Concat(" (did you mean \"", setting.path, "\"?)");
    }
  }
  return DidYouMean(name, NamesUnder(table, prefix));
}

absl::Status ReadMap(const YAML::Node& map, const std::string& prefix, const std::string& source,
                     int depth, const SettingTable& table) {
  if (depth > kMaxDepth)
    return InvalidArgument(Where(source, map), ": nested deeper than ", kMaxDepth);
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string where = Where(source, entry.first);
    if (!entry.first.IsScalar()) return InvalidArgument(where, ": a key must be plain text");
    const std::string name = entry.first.Scalar();
    const std::string path = prefix + name;
    if (!seen.insert(name).second) return InvalidArgument(where, ": ", path, " is given twice");
    if (IsSection(table, path)) {
      if (entry.second.IsNull()) continue;  // "optimizer:" with nothing under it
      if (!entry.second.IsMap())
        return InvalidArgument(where, ": ", path, " is a section, not a value");
      TAOPD_RETURN_IF_ERROR(ReadMap(entry.second, path + ".", source, depth + 1, table));
      continue;
    }
    const Setting* setting = Find(table, path);
    if (setting == nullptr) {
      return InvalidArgument(where, ": unknown key \"", path, "\"",
                             Suggestion(table, prefix, name));
    }
    TAOPD_RETURN_IF_ERROR(Annotate(AssignNode(entry.second, *setting), where));
  }
  return absl::OkStatus();
}

// Returns a value, a list or a section of a list in flow style, without quotes.
std::string FlowText(const YAML::Node& node, int depth) {
  if (depth > kMaxDepth || !(node.IsSequence() || node.IsMap())) {
    return node.IsScalar() ? node.Scalar() : "";
  }
  std::string out;
  for (const auto& item : node) {
    out += out.empty() ? "" : ", ";
    out += node.IsMap() ? FlowText(item.first, depth + 1) + ": " + FlowText(item.second, depth + 1)
                        : FlowText(item, depth + 1);
  }
  return node.IsMap() ? "{" + out + "}" : "[" + out + "]";
}

void AddValues(const YAML::Node& map, const std::string& prefix, int depth,
               std::vector<std::pair<std::string, std::string>>* values) {
  for (const auto& entry : map) {
    const std::string path = prefix + FlowText(entry.first, depth);
    if (entry.second.IsMap() && depth < kMaxDepth) {
      AddValues(entry.second, path + ".", depth + 1, values);
    } else {
      values->emplace_back(path, FlowText(entry.second, depth));
    }
  }
}

}  // namespace

absl::Status ReadYamlSettings(const std::string& text, const std::string& source,
                              const SettingTable& table) {
  TAOPD_ASSIGN_OR_RETURN(const YAML::Node root, LoadYaml(text, source));
  if (root.IsNull()) return absl::OkStatus();
  if (!root.IsMap()) return InvalidArgument(source, ": the top level must be sections and keys");
  return ReadMap(root, "", source, 0, table);
}

absl::Status ReadYamlFile(const std::string& path, const SettingTable& table) {
  TAOPD_ASSIGN_OR_RETURN(const std::string text,
                         Annotate(ReadFileToString(path), "the configuration file cannot be read"));
  return ReadYamlSettings(text, path, table);
}

absl::Status ApplyOverride(const std::string& assignment, const SettingTable& table) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos) {
    return InvalidArgument("--set ", assignment, ": the form is section.key=value");
  }
  const std::string path = assignment.substr(0, equals);
  const Setting* setting = Find(table, path);
  if (setting == nullptr) {
    const size_t dot = path.rfind('.');
    const std::string prefix = dot == std::string::npos ? "" : path.substr(0, dot + 1);
    return InvalidArgument("--set ", assignment, ": unknown key \"", path, "\"",
                           Suggestion(table, prefix, path.substr(prefix.size())));
  }
  const std::string value = assignment.substr(equals + 1);
  // A text may be what YAML would read as a list, and hold line breaks and " #", which YAML drops.
  if (auto* text = std::get_if<std::string*>(&setting->pointer);
      text != nullptr && !value.starts_with('"') && !value.starts_with('\'')) {
    **text = value;
    return absl::OkStatus();
  }
  TAOPD_ASSIGN_OR_RETURN(const YAML::Node node, LoadYaml(value, "--set " + assignment));
  return Annotate(AssignNode(node, *setting), "--set");
}

std::string WriteYamlSettings(const SettingTable& table) {
  std::string out;
  std::vector<std::string> open;  // the sections that contain the last line
  for (const Setting& setting : table.settings()) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t dot; (dot = setting.path.find('.', begin)) != std::string::npos; begin = dot + 1) {
      parts.push_back(setting.path.substr(begin, dot - begin));
    }
    size_t shared = 0;
    while (shared < open.size() && shared < parts.size() && open[shared] == parts[shared]) ++shared;
    for (size_t i = shared; i < parts.size(); ++i)
      out += std::string(2 * i, ' ') + parts[i] + ":\n";
    open = parts;
    out += std::string(2 * parts.size(), ' ') + setting.path.substr(begin) + ": " +
           SettingText(setting.pointer) + "\n";
  }
  return out;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadYamlValues(
    const std::string& text, const std::string& source) {
  TAOPD_ASSIGN_OR_RETURN(const YAML::Node root, LoadYaml(text, source));
  if (!root.IsMap()) return InvalidArgument(source, ": the top level must be sections and keys");
  std::vector<std::pair<std::string, std::string>> values;
  AddValues(root, "", 0, &values);
  return values;
}

std::string SettingsReference(const SettingTable& table) {
  std::string out;
  auto add_table = [&](const std::string& prefix) {
    std::string rows;
    auto add_row = [&](const Setting& setting, const std::string& path) {
      rows += "| `" + path + "` | " + SettingTypeName(setting.pointer) + " | `" +
              SettingText(setting.pointer) + "` | " + setting.help + " | " +
              (setting.may_change ? "may change" : "") + " |\n";
    };
    for (const Setting& setting : table.settings()) {
      const size_t dot = setting.path.rfind('.');
      const std::string section = dot == std::string::npos ? "" : setting.path.substr(0, dot);
      if (section != prefix) continue;
      add_row(setting, setting.path);
      if (!setting.list) continue;
      const SettingTable prototype = setting.list->Prototype();
      for (const Setting& item : prototype.settings())
        add_row(item, setting.path + "[]." + item.path);
    }
    if (!rows.empty())
      out +=
          "\n| setting | type | default | what it does | on `--resume` |\n"
          "| --- | --- | --- | --- | --- |\n" +
          rows;
  };
  add_table("");
  for (const SettingSection& section : table.sections()) {
    out += "\n**" + section.path + "**: " + section.help + "\n";
    add_table(section.path);
  }
  return out;
}

}  // namespace taopd
