#include "trainer/guard/rollbacks.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

using nlohmann::json;

constexpr char kFile[] = "/rollbacks.json";
constexpr const char* kPosition[] = {"to_step", "epoch", "epoch_index"};

json ToJson(const Rollbacks& rollbacks) {
  json json = {{"count", rollbacks.count}, {"lr_factor", rollbacks.lr_factor}};
  if (rollbacks.to_step < 0) return json;
  json["to_step"] = rollbacks.to_step;
  json["epoch"] = rollbacks.epoch;
  json["epoch_index"] = rollbacks.epoch_index;
  return json;
}

std::optional<Rollbacks> FromJson(const json& json) {
  if (!json.is_object() || !json.contains("count") || !json["count"].is_number_integer() ||
      !json.contains("lr_factor") || !json["lr_factor"].is_number()) {
    return std::nullopt;
  }
  Rollbacks rollbacks{json["count"].get<int64_t>(), json["lr_factor"].get<double>()};
  const bool has_position = std::all_of(
      std::begin(kPosition), std::end(kPosition),
      [&](const char* key) { return json.contains(key) && json[key].is_number_integer(); });
  if (!has_position) return rollbacks;
  rollbacks.to_step = json["to_step"].get<int64_t>();
  rollbacks.epoch = json["epoch"].get<int64_t>();
  rollbacks.epoch_index = json["epoch_index"].get<int64_t>();
  return rollbacks;
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
                            const std::optional<Rollbacks>& intent) {
  json json = ToJson(rollbacks);
  if (intent) json["intent"] = ToJson(*intent);
  return WriteFileAtomically(run_dir + kFile, json.dump() + "\n");
}

}  // namespace taopd
