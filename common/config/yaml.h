// Reads settings from YAML and writes them back. See settings.h.
#pragma once

#include <string>
#include <vector>

#include "common/config/settings.h"

namespace taopd {

// Sets what the text names; the rest keeps its value. Refused, with the line: unknown keys, keys
// given twice, values of another type (5 is a number and an integer, "5" is neither, 1e3 is a
// number only), null. `source` names the text in messages. Does not run the checks.
absl::Status ReadYamlSettings(const std::string& text, const std::string& source,
                              const SettingTable& table);

// ReadYamlSettings of a file's content.
absl::Status ReadYamlFile(const std::string& path, const SettingTable& table);

// "optimizer.lr=1e-5", the right side as in YAML; text needs no quotes ("student.model=a/b"), a
// list is given whole ("objective.terms=[{name: ta_opd, weight: 1}]").
absl::Status ApplyOverride(const std::string& assignment, const SettingTable& table);

// The whole effective configuration as YAML that ReadYamlSettings takes back unchanged.
std::string WriteYamlSettings(const SettingTable& table);

// A Markdown table per section: setting, type, default (the present value), help.
std::string SettingsReference(const SettingTable& table);

}  // namespace taopd
