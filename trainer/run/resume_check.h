// What a resumed run has in common with the run that wrote its checkpoint.
//
// A checkpoint records every setting of its run, and facts that no setting holds, such as the
// fingerprint of the data. A run that continues from it is compared with the record before anything
// is written. A setting says where it is declared whether it may change (SettingVisitor); a fact
// never may. The user permits other changes one by one (--allow-change). No LibTorch here.
#pragma once

#include <optional>
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

// Compares what a checkpoint recorded with what the resumed run has. A name that only one of them
// has is not compared: another version of the program wrote the checkpoint. Logs each change that
// is permitted, with both values. Returns INVALID_ARGUMENT if other values have changed; the
// message has one line for each of them, with both values and the flag that permits the change.
absl::Status CheckResume(const RunFacts& recorded, const RunFacts& present,
                         const std::vector<std::string>& allow_change);

// Returns INVALID_ARGUMENT if a name that the user permits to change is not among `known`.
absl::Status CheckAllowedNames(const std::vector<std::string>& allow_change,
                               const std::vector<std::string>& known);

// The record as JSON, and read back: one object from names to values. Whether a value may change is
// not part of it, and false when it is read. Returns DATA_LOSS for any other text.
std::string WriteRunFacts(const RunFacts& facts);
absl::StatusOr<RunFacts> ReadRunFacts(const std::string& path);

}  // namespace taopd
