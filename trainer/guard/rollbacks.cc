#include "trainer/guard/rollbacks.h"

#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

constexpr char kFile[] = "/rollbacks.json";

}  // namespace

absl::StatusOr<Rollbacks> ReadRollbacks(const std::string& run_dir) {
  if (!FileExists(run_dir + kFile)) return Rollbacks();
  TAOPD_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(run_dir + kFile));
  if (!json.is_object() || !json.contains("count") || !json["count"].is_number_integer() ||
      !json.contains("lr_factor") || !json["lr_factor"].is_number()) {
    return DataLoss(run_dir, kFile, ": no numbers \"count\" and \"lr_factor\"");
  }
  return Rollbacks{json["count"].get<int64_t>(), json["lr_factor"].get<double>()};
}

absl::Status WriteRollbacks(const Rollbacks& rollbacks, const std::string& run_dir) {
  const nlohmann::json json = {{"count", rollbacks.count}, {"lr_factor", rollbacks.lr_factor}};
  return WriteFileAtomically(run_dir + kFile, json.dump() + "\n");
}

}  // namespace taopd
