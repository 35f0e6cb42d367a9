#include "common/io/safetensors/safetensors.h"

#include <set>
#include <utility>

#include "common/io/file.h"
#include "common/io/jsonl.h"

namespace taopd {
namespace {

// Returns whether a shard is a plain name in the directory of the index. (Links are followed,
// because the Hugging Face cache consists of links to files outside of the model's directory.)
bool IsBareShardName(const std::string& name) {
  constexpr std::string_view kSuffix = ".safetensors";
  return name.size() > kSuffix.size() && name.ends_with(kSuffix) && name[0] != '.' &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

absl::Status AddFile(const std::string& path, SafetensorsModel* model) {
  TAOPD_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
  for (const auto& [name, view] : file->tensors()) {
    const auto [entry, is_new] = model->tensors.try_emplace(name, view, file);
    if (!is_new) {
      return DataLoss("tensor \"", name, "\" is in both ", entry->second.second->path(), " and ",
                      path);
    }
  }
  model->files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsModel> OpenShards(const std::string& model_dir) {
  const std::string index_path = model_dir + "/" + kSafetensorsIndex;
  TAOPD_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonFile(index_path));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return DataLoss(index_path, ": no object weight_map");
  }
  const nlohmann::json& weight_map = index["weight_map"];
  std::set<std::string> shard_names;
  for (const auto& [tensor, shard] : weight_map.items()) {
    if (!shard.is_string()) return DataLoss(index_path, ": \"", tensor, "\" names no file");
    const std::string name = shard.get<std::string>();
    if (!IsBareShardName(name)) {
      return DataLoss(index_path, ": \"", tensor, "\": \"", name,
                      "\" is not the bare name of a .safetensors file");
    }
    shard_names.insert(name);
  }

  SafetensorsModel model;
  for (const std::string& name : shard_names) {
    const absl::Status added = Annotate(AddFile(model_dir + "/" + name, &model), index_path);
    // NOT_FOUND would mean that the directory has no weights at all.
    if (absl::IsNotFound(added)) return DataLoss(added.message());
    TAOPD_RETURN_IF_ERROR(added);
  }
  for (const auto& [tensor, shard] : weight_map.items()) {
    const auto found = model.tensors.find(tensor);
    const std::string shard_path = model_dir + "/" + shard.get<std::string>();
    if (found == model.tensors.end() || found->second.second->path() != shard_path) {
      return DataLoss(index_path, ": tensor \"", tensor, "\" is not in ", shard_path);
    }
  }
  for (const auto& [tensor, view] : model.tensors) {
    if (!weight_map.contains(tensor)) {
      return DataLoss(index_path, ": tensor \"", tensor, "\" of ", view.second->path(),
                      " is not in the index");
    }
  }
  return model;
}

}  // namespace

absl::StatusOr<SafetensorsModel> OpenSafetensorsModel(const std::string& model_dir) {
  const std::string single_path = model_dir + "/" + kSafetensorsFile;
  if (FileExists(single_path)) {
    SafetensorsModel model;
    TAOPD_RETURN_IF_ERROR(AddFile(single_path, &model));
    return model;
  }
  if (FileExists(model_dir + "/" + kSafetensorsIndex)) return OpenShards(model_dir);
  return NotFound("neither ", kSafetensorsFile, " nor ", kSafetensorsIndex, " is in ", model_dir);
}

}  // namespace taopd
