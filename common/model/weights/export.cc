// The export of weights to safetensors.

#include <absl/strings/str_format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "common/io/file.h"
#include "common/model/weights/lora_weights.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/model_snapshot.h"
#include "common/model/weights/stored_tensor.h"
#include "common/model/weights/weights.h"

namespace taopd {
namespace {

// Returns the parameters, in order, in groups that each fit in a file.
std::vector<std::vector<NamedParameter>> SplitIntoShards(const ModelSnapshot& model,
                                                         int64_t max_shard_bytes) {
  std::vector<std::vector<NamedParameter>> shards;
  int64_t shard_bytes = 0;
  for (const NamedParameter& parameter : model.parameters) {
    const auto size_bytes = static_cast<int64_t>(parameter.second.nbytes());
    if (shards.empty() || shard_bytes + size_bytes > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(parameter);
    shard_bytes += size_bytes;
  }
  return shards;
}

std::string ShardName(size_t number, size_t num_shards) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", number, num_shards);
}

// Removes the weights of an earlier export that the new one, which is complete by now, does not
// name. Until the last of them is removed, a reader finds one of the two models, whole.
absl::Status RemoveOldWeights(const std::string& model_dir, const std::set<std::string>& keep) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(model_dir));
  // The index is removed before the shards that it names.
  for (const bool index_pass : {true, false}) {
    for (const std::string& name : names) {
      const bool is_weights = name == kSafetensorsFile || name == kSafetensorsIndex ||
                              (name.starts_with("model-") && name.ends_with(".safetensors"));
      if (!is_weights || keep.contains(name) || (name == kSafetensorsIndex) != index_pass) continue;
      std::error_code error;
      std::filesystem::remove(model_dir + "/" + name, error);
      if (error) return Internal(model_dir, "/", name, ": cannot be removed: ", error.message());
    }
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(const ModelSnapshot& model, const std::string& model_dir,
                          int64_t max_shard_bytes) {
  const auto shards = SplitIntoShards(model, max_shard_bytes);
  if (shards.size() == 1) {
    TAOPD_RETURN_IF_ERROR(WriteTensors(model_dir + "/" + kSafetensorsFile, shards[0]));
    return RemoveOldWeights(model_dir, {kSafetensorsFile});
  }
  nlohmann::ordered_json index;
  int64_t total_bytes = 0;
  std::map<std::string, std::string> weight_map;
  std::set<std::string> written = {kSafetensorsIndex};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardName(i + 1, shards.size());
    TAOPD_RETURN_IF_ERROR(WriteTensors(model_dir + "/" + name, shards[i]));
    written.insert(name);
    for (const auto& [tensor_name, parameter] : shards[i]) {
      weight_map[tensor_name] = name;
      total_bytes += static_cast<int64_t>(parameter.nbytes());
    }
  }
  index["metadata"] = {{"total_parameters", model.config.NumParameters()},
                       {"total_size", total_bytes}};
  index["weight_map"] = weight_map;
  TAOPD_RETURN_IF_ERROR(
      WriteFileAtomically(model_dir + "/" + kSafetensorsIndex, index.dump(2) + "\n"));
  return RemoveOldWeights(model_dir, written);
}

}  // namespace

ModelSnapshot SnapshotOf(const Decoder& decoder, bool copies) {
  ModelSnapshot snapshot = {decoder.config(), decoder.TrainedParameters(), std::nullopt};
  if (decoder.lora() != nullptr) snapshot.lora = *decoder.lora();
  if (snapshot.lora && snapshot.lora->ensure_weight_tying)
    snapshot.parameters.emplace_back(SavedHeadName(), decoder.lm_head());
  snapshot.config.dtype = ConfigDtype(decoder.dtype());
  if (!copies) return snapshot;
  for (auto& [name, parameter] : snapshot.parameters) {
    parameter = parameter.detach().to(at::kCPU, parameter.scalar_type(), /*non_blocking=*/false,
                                      /*copy=*/true);
  }
  return snapshot;
}

absl::Status SaveSnapshot(const ModelSnapshot& snapshot, const std::string& model_dir,
                          int64_t max_shard_bytes) {
  if (snapshot.lora) return WriteLoraAdapter(*snapshot.lora, snapshot.parameters, model_dir);
  TAOPD_RETURN_IF_ERROR(MakeDirectories(model_dir));
  TAOPD_RETURN_IF_ERROR(WriteWeights(snapshot, model_dir, max_shard_bytes));
  return WriteFileAtomically(model_dir + "/config.json", ModelConfigJson(snapshot.config));
}

absl::Status SaveDecoder(const Decoder& decoder, const std::string& model_dir,
                         int64_t max_shard_bytes) {
  return SaveSnapshot(SnapshotOf(decoder, /*copies=*/false), model_dir, max_shard_bytes);
}

}  // namespace taopd
