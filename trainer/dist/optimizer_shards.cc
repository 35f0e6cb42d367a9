#include "trainer/dist/optimizer_shards.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/safetensors/safetensors.h"
#include "common/model/weights/weights.h"

namespace taopd {
namespace {

using nlohmann::json;

constexpr char kShardingInfo[] = "DCP_SHARDING_INFO";

std::string ShardName(int64_t rank, size_t part, size_t num_parts) {
  return absl::StrFormat("shard-%05d-model-%05d-of-%05d.safetensors", rank, part, num_parts);
}

// Consecutive elements of a stored tensor.
struct Chunk {
  int64_t begin = 0;
  int64_t end = 0;
  const std::byte* bytes = nullptr;
  at::ScalarType type = at::kFloat;
};

// All files of a directory, mapped into memory, and the chunks of each tensor, sorted by place.
struct ShardFiles {
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  std::map<std::string, std::vector<Chunk>> chunks;
  int64_t num_updates = -1;
};

absl::Status AddFile(const std::string& path, ShardFiles* shards) {
  TAOPD_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path));
  TAOPD_ASSIGN_OR_RETURN(const int64_t num_updates, NumUpdatesOf(*file));
  if (shards->num_updates >= 0 && num_updates != shards->num_updates) {
    return DataLoss(path, ": num_updates is ", num_updates, ", that of another shard is ",
                    shards->num_updates);
  }
  shards->num_updates = num_updates;
  const auto info = file->metadata().find(kShardingInfo);
  const json places = info == file->metadata().end()
                          ? json()
                          : json::parse(info->second, nullptr, /*allow_exceptions=*/false);
  for (const auto& [name, tensor] : file->tensors()) {
    const json::json_pointer where = json::json_pointer("") / name / "saved_offsets" / 0;
    if (!places.is_object() || !places.contains(where) || !places[where].is_number_unsigned()) {
      return DataLoss(path, ": ", kShardingInfo, " lacks the place of tensor ", name);
    }
    if (!IsStateDtype(name, tensor.dtype) || tensor.shape.size() != 1) {
      return DataLoss(path, ": tensor ", name, " is not one-dimensional float32 or, for moments, ",
                      "bfloat16");
    }
    const auto begin = places[where].get<int64_t>();
    shards->chunks[name].push_back({begin, begin + tensor.shape[0], tensor.bytes.data(),
                                    *ScalarTypeOfSafetensors(tensor.dtype)});
  }
  shards->files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::StatusOr<ShardFiles> OpenShards(const std::string& dir) {
  TAOPD_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(dir));
  ShardFiles shards;
  for (const std::string& name : names) {
    if (name.ends_with(".safetensors")) TAOPD_RETURN_IF_ERROR(AddFile(dir + "/" + name, &shards));
  }
  if (shards.files.empty()) return DataLoss(dir, " holds no shards of an optimizer");
  for (auto& [name, chunks] : shards.chunks) {
    std::ranges::sort(chunks, [](const Chunk& a, const Chunk& b) { return a.begin < b.begin; });
  }
  return shards;
}

// Copies elements [offset, offset + to.numel()) of a tensor from its chunks.
absl::Status CopyElements(const std::string& dir, const std::string& name,
                          const std::vector<Chunk>& chunks, int64_t offset, const at::Tensor& to) {
  const int64_t begin = offset, end = offset + to.numel();
  for (const Chunk& chunk : chunks) {
    if (offset == end || chunk.begin > offset) break;
    const int64_t last = std::min(end, chunk.end);
    if (last <= offset) continue;
    const at::Tensor part = at::empty({last - offset}, chunk.type);
    const auto element_bytes = static_cast<int64_t>(part.element_size());
    std::memcpy(part.mutable_data_ptr(), chunk.bytes + (offset - chunk.begin) * element_bytes,
                part.nbytes());
    to.narrow(0, offset - begin, last - offset).copy_(part);
    offset = last;
  }
  if (offset == end) return absl::OkStatus();
  return DataLoss(dir, ": tensor ", name, " lacks the element ", offset);
}

// Returns the number of elements of the stored tensor, provided that its chunks leave no gap.
int64_t StoredSize(const std::vector<Chunk>& chunks) {
  int64_t end = 0;
  for (const Chunk& chunk : chunks) end = std::max(end, chunk.end);
  return end;
}

}  // namespace

OptimizerShardsToWrite::OptimizerShardsToWrite(const AdamW& optimizer, int64_t rank, bool copies) {
  // The n-th chunk of a tensor goes into the n-th file.
  std::map<std::string, size_t> num_chunks;
  std::vector<std::vector<AdamW::StateSlice>> files;
  for (AdamW::StateSlice& slice : optimizer.State()) {
    const size_t part = num_chunks[slice.name]++;
    if (part >= files.size()) files.resize(part + 1);
    files[part].push_back(std::move(slice));
  }
  for (size_t part = 0; part < files.size(); ++part) {
    File& file = files_.emplace_back(
        File{ShardName(rank, part + 1, files.size()), StateToWrite(optimizer.num_updates()), ""});
    json places = json::object();
    for (const AdamW::StateSlice& slice : files[part]) {
      file.state.Add(slice.name, {slice.values.numel()}, slice.values, copies);
      places[slice.name] = {{"saved_offsets", {slice.offset}}};
    }
    file.places = places.dump();
  }
}

absl::Status OptimizerShardsToWrite::Write(const std::string& dir) const {
  for (const File& file : files_) {
    TAOPD_RETURN_IF_ERROR(file.state.Write(dir + "/" + file.name,
                                           {{"DCP_VERSION", "1.0"}, {kShardingInfo, file.places}}));
  }
  return absl::OkStatus();
}

absl::Status ReadOptimizerShards(const std::string& dir, AdamW* optimizer) {
  TAOPD_ASSIGN_OR_RETURN(const ShardFiles shards, OpenShards(dir));
  std::vector<AdamW::StateSlice> state = optimizer->State();
  // Returns whether the files have tensors of this kind; if not, removes those of `state`.
  const auto has = [&](const char* kind) {
    const bool found = std::ranges::any_of(
        shards.chunks, [&](const auto& tensor) { return tensor.first.starts_with(kind); });
    if (!found)
      std::erase_if(state, [&](const auto& slice) { return slice.name.starts_with(kind); });
    return found;
  };
  const bool has_masters = has(kMasterPrefix), has_averages = has(kAveragePrefix);
  std::vector<at::Tensor> loaded;
  for (const AdamW::StateSlice& slice : state) {
    const auto chunks = shards.chunks.find(slice.name);
    if (chunks == shards.chunks.end()) return DataLoss(dir, ": tensor ", slice.name, " is missing");
    int64_t size = 1;
    for (const int64_t extent : slice.shape) size *= extent;
    if (const int64_t stored = StoredSize(chunks->second); stored != size) {
      return DataLoss(dir, ": tensor ", slice.name, " has ", stored,
                      " elements, that of the model ", size);
    }
    loaded.push_back(at::empty({slice.values.numel()}, at::kFloat));
    TAOPD_RETURN_IF_ERROR(
        CopyElements(dir, slice.name, chunks->second, slice.offset, loaded.back()));
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < state.size(); ++i) {
    at::Tensor values = state[i].values;
    values.copy_(loaded[i]);
  }
  optimizer->CompleteState(shards.num_updates, has_masters, has_averages);
  return absl::OkStatus();
}

}  // namespace taopd
