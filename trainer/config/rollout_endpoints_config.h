// The servers that generate rollouts, if the trainer's own process does not. These settings are
// part of the section rollout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/config/settings.h"
#include "trainer/config/run_config.h"

namespace taopd {

// The transport of the weights to the servers.
enum class WeightTransfer {
  kDirectory,  // the servers see rollout.weights_dir under the same path
  kStream,     // the trainer sends them
  kNccl,       // the trainer broadcasts them from its GPU to those of vLLM
};
inline EnumNames<WeightTransfer> NamesOf(WeightTransfer) {
  return {{WeightTransfer::kDirectory, "directory"},
          {WeightTransfer::kStream, "stream"},
          {WeightTransfer::kNccl, "nccl"}};
}
// The treatment of sequences that a server is generating when new weights come.
enum class OnUpdate {
  kFinish,   // the server waits for them
  kRestart,  // the server aborts them, and their clients send them again
};
inline EnumNames<OnUpdate> NamesOf(OnUpdate) {
  return {{OnUpdate::kFinish, "finish"}, {OnUpdate::kRestart, "restart"}};
}

struct RolloutEndpointsConfig : ServerAccess {
  std::vector<std::string> endpoints;
  std::vector<std::string> eval_endpoints;
  std::string weights_dir;
  WeightTransfer weight_transfer = WeightTransfer::kDirectory;
  OnUpdate on_update = OnUpdate::kFinish;
  int64_t max_in_flight = 64;
  double timeout_s = 1800;
  double outage_budget_s = 1800;
  double connect_timeout_s = 1800;

  // Returns whether other processes generate.
  bool IsElsewhere() const { return !endpoints.empty(); }
  void Declare(SettingTable& keys);
};

// Returns INVALID_ARGUMENT for settings that do not fit each other.
absl::Status CheckRolloutEndpoints(const RolloutEndpointsConfig& config);

}  // namespace taopd
