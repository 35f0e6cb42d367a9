// Checks what a resumed run must have in common with the run that wrote its checkpoint.
//
// A checkpoint records every setting of its run, and facts besides the settings, such as the
// fingerprint of the data. A run that continues from it is compared with the record before anything
// is written. The declaration of a setting says whether it may change (SettingTable); a fact may
// not. The user can permit other changes one by one (--allow-change). It does not depend on
// LibTorch.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/config/settings.h"

namespace taopd {

// A setting or a fact with its value as text.
struct RunFact {
  std::string name;  // the path of a setting, or a fact's name: "data_fingerprint"
  std::string value;
  bool may_change = false;
};
using RunFacts = std::vector<RunFact>;

// All settings of the table. Items of lists are part of the list's value.
RunFacts FactsOf(const SettingTable& settings);

// Returns the settings of a configuration whose values differ from those of another one of the same
// type, such as the defaults: one "path=value" per line, a form that --set reads.
std::string ChangedSettings(const RunFacts& settings, const RunFacts& defaults);

// A setting or a fact that does not have the value that a checkpoint records.
struct FactChange {
  std::string name;
  std::string recorded, present;  // the values
  bool may_change = false;
};

// Returns the changes since the checkpoint that has recorded these facts. Names that only one of
// them has are ignored, because another version of the program may have written the checkpoint.
std::vector<FactChange> ChangesSince(const RunFacts& recorded, const RunFacts& present);

// Checks the changes since a checkpoint. Logs each permitted one with both values. Returns
// INVALID_ARGUMENT if there are others; the message has one line for each of them, with both values
// and the flag that permits the change.
absl::Status CheckResume(const RunFacts& recorded, const RunFacts& present,
                         const std::vector<std::string>& allow_change);

// Returns INVALID_ARGUMENT if a name that the user permits to change is not among `known`.
absl::Status CheckAllowedNames(const std::vector<std::string>& allow_change,
                               const std::vector<std::string>& known);

// Convert the record to JSON, an object from names to values, and back. may_change is not recorded
// and is false after reading. ReadRunFacts returns DATA_LOSS for any other text.
std::string WriteRunFacts(const RunFacts& facts);
absl::StatusOr<RunFacts> ReadRunFacts(const std::string& path);

}  // namespace taopd
