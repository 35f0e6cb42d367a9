// Reads settings from YAML and writes them back. settings.h describes how settings are declared.
//
// The functions that read do not run the checks; callers run CheckSettings after everything is
// read.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/config/settings.h"

namespace taopd {

// Sets the settings that the text names; all others keep their values. Returns INVALID_ARGUMENT
// with the line for text that is not one YAML document, and for:
//   - an unknown key, with the nearest known key
//   - a key that is given twice
//   - a value of another type: 5 is a number and an integer, "5" is neither, 1e3 is only a number
//   - null as the value of a setting
// `source` names the text in messages.
absl::Status ReadYamlSettings(const std::string& text, const std::string& source,
                              const SettingTable& table);

// Reads the settings from a file as ReadYamlSettings does. Returns the errors of ReadFileToString
// (common/io/file.h) if the file cannot be read.
absl::Status ReadYamlFile(const std::string& path, const SettingTable& table);

// Applies one assignment of the command line, such as "optimizer.lr=1e-5". The right side is YAML.
// Text needs no quotes: without one at its beginning it is taken as it is ("student.model=a/b"). A
// list is given as a whole ("objective.terms=[{name: ta_opd, weight: 1}]").
absl::Status ApplyOverride(const std::string& assignment, const SettingTable& table);

// Returns the whole effective configuration as YAML that ReadYamlSettings reads back unchanged.
std::string WriteYamlSettings(const SettingTable& table);

// Returns the path and the text of each value, in the text's order, whatever its keys are: for
// readers of configurations of other commands or versions. A list becomes one text in flow style.
// Returns INVALID_ARGUMENT if the text is not one YAML document with sections and keys.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ReadYamlValues(
    const std::string& text, const std::string& source);

// Returns a Markdown table per section, with a row per setting: path, type, default (the current
// value), help, and whether it may change when a run is resumed.
std::string SettingsReference(const SettingTable& table);

}  // namespace taopd
