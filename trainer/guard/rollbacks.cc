#include "trainer/guard/rollbacks.h"

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::json;

constexpr char kFile[] = "/rollbacks.json";

json ToJson(const Rollbacks& rollbacks) {
  return {{"count", rollbacks.count}, {"lr_factor", rollbacks.lr_factor}};
}

std::optional<Rollbacks> FromJson(const json& json) {
  if (!json.is_object() || !json.contains("count") || !json["count"].is_number_integer() ||
      !json.contains("lr_factor") || !json["lr_factor"].is_number()) {
    return std::nullopt;
  }
  return Rollbacks{json["count"].get<int64_t>(), json["lr_factor"].get<double>()};
}

}  // namespace

absl::StatusOr<Rollbacks> ReadRollbacks(const std::string& run_dir, int64_t step) {
  if (!FileExists(run_dir + kFile)) return Rollbacks();
  TAOPD_ASSIGN_OR_RETURN(const json json, ReadJsonFile(run_dir + kFile));
  const std::optional<Rollbacks> done = FromJson(json);
  if (!done) return DataLoss(run_dir, kFile, ": no numbers \"count\" and \"lr_factor\"");
  if (!json.contains("intent")) return *done;
  const auto& intent = json["intent"];
  const std::optional<Rollbacks> after = FromJson(intent);
  if (!after || !intent.contains("to_step") || !intent["to_step"].is_number_integer()) {
    return DataLoss(run_dir, kFile,
                    ": no numbers \"to_step\", \"count\" and \"lr_factor\" in \"intent\"");
  }
  return step <= intent["to_step"].get<int64_t>() ? *after : *done;
}

absl::Status WriteRollbacks(const Rollbacks& rollbacks, const std::string& run_dir,
                            const std::optional<RollbackIntent>& intent) {
  json json = ToJson(rollbacks);
  if (intent) {
    json["intent"] = ToJson(intent->after);
    json["intent"]["to_step"] = intent->to_step;
  }
  return WriteFileAtomically(run_dir + kFile, json.dump() + "\n");
}

}  // namespace taopd
