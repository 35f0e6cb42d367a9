#include "trainer/run/resume/resume_check.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/io/jsonl.h"

namespace taopd {

RunFacts FactsOf(const SettingTable& settings) {
  RunFacts facts;
  for (const Setting& setting : settings.settings()) {
    facts.push_back({setting.path, SettingText(setting.pointer), setting.may_change});
  }
  return facts;
}

std::string ChangedSettings(const RunFacts& settings, const RunFacts& defaults) {
  std::string lines;
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].value != defaults[i].value)
      lines += Concat(settings[i].name, "=", settings[i].value, "\n");
  }
  return lines;
}

std::vector<FactChange> ChangesSince(const RunFacts& recorded, const RunFacts& present) {
  std::map<std::string, std::string> before;
  for (const RunFact& fact : recorded) before[fact.name] = fact.value;
  std::vector<FactChange> changes;
  for (const RunFact& fact : present) {
    const auto found = before.find(fact.name);
    if (found == before.end() || found->second == fact.value) continue;
    changes.push_back({fact.name, found->second, fact.value, fact.may_change});
  }
  return changes;
}

absl::Status CheckResume(const RunFacts& recorded, const RunFacts& present,
                         const std::vector<std::string>& allow_change) {
  std::string differences;
  for (const FactChange& change : ChangesSince(recorded, present)) {
    const bool is_allowed = std::ranges::find(allow_change, change.name) != allow_change.end();
    if (!change.may_change && !is_allowed) {
      differences += Concat(differences.empty() ? "" : "\n", change.name, " = ", change.present,
                            ": the checkpoint's run has ", change.recorded,
                            ", and a resumed run must have the same; set it back, or permit the "
                            "change with --allow-change ",
                            change.name);
    } else if (change.may_change) {
      LogInfo("changed since the checkpoint",
              {{"setting", change.name}, {"from", change.recorded}, {"to", change.present}});
    } else {
      LogWarning("changed since the checkpoint, as permitted",
                 {{"setting", change.name}, {"from", change.recorded}, {"to", change.present}});
    }
  }
  return differences.empty() ? absl::OkStatus() : InvalidArgument(differences);
}

absl::Status CheckAllowedNames(const std::vector<std::string>& allow_change,
                               const std::vector<std::string>& known) {
  for (const std::string& name : allow_change) {
    if (std::ranges::find(known, name) != known.end()) continue;
    return InvalidArgument("--allow-change ", name, ": no setting or fact has this name",
                           DidYouMean(name, known));
  }
  return absl::OkStatus();
}

std::string WriteRunFacts(const RunFacts& facts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const RunFact& fact : facts) json[fact.name] = fact.value;
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

absl::StatusOr<RunFacts> ReadRunFacts(const std::string& path) {
  TAOPD_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(path));
  if (!json.is_object()) return DataLoss(path, " is not a JSON object");
  RunFacts facts;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string()) return DataLoss(path, ": the value of ", name, " is not a string");
    facts.push_back({name, value.get<std::string>(), false});
  }
  return facts;
}

}  // namespace taopd
