// The hash that names a model's weights.
#include <exception>
#include <functional>
#include <map>
#include <utility>

#include "common/io/safetensors/safetensors.h"
#include "common/io/sha256.h"
#include "common/model/config/dtype.h"
#include "common/model/torch_errors.h"
#include "common/model/weights/lora_weights.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/stored_tensor.h"
#include "common/model/weights/weights.h"
#include "kernels/torch/data_type.h"

namespace taopd {
namespace {

struct HashedTensor {
  std::function<at::Tensor()> get;
  std::function<void()> release;  // releases its mapped pages; may be null
};

// Releases each tensor after its bytes are hashed.
absl::StatusOr<std::string> HashWeights(ModelConfig config, at::ScalarType dtype,
                                        std::map<std::string, HashedTensor>* by_name) {
  // Hashes the fields instead of the file: spacing, key order and the writer's version are not part
  // of the model.
  config.raw_json.clear();
  config.dtype = ConfigDtype(dtype);
  Sha256 hash;
  hash.Update(ModelConfigJson(config));
  while (!by_name->empty()) {
    const auto node = by_name->extract(by_name->begin());
    const auto& [get, release] = node.mapped();
    const at::Tensor tensor = get().detach().to(at::kCPU).contiguous();
    hash.Update(Concat("\n", node.key(), " ", SafetensorsDtype(dtype), " ", tensor.sizes(), "\n"));
    hash.Update(std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
    if (release) release();
  }
  return hash.HexDigest();
}

absl::StatusOr<std::string> HashStored(const std::string& model_dir, at::ScalarType dtype,
                                       const std::string& merged_adapter_dir) {
  TAOPD_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
  TAOPD_ASSIGN_OR_RETURN(const SafetensorsModel stored, OpenSafetensorsModel(model_dir));
  TAOPD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  ModelWeights shapes_only;
  const auto slots = ListWeights(config, architecture->names, &shapes_only);
  LoraAdapters merged;
  if (!merged_adapter_dir.empty()) {
    TAOPD_ASSIGN_OR_RETURN(merged, ReadLoraAdapters(merged_adapter_dir, config, slots));
  }
  std::map<std::string, HashedTensor> by_name;
  for (const WeightSlot& slot : slots) {
    const auto found = stored.tensors.find(slot.name);
    if (found == stored.tensors.end()) {
      return InvalidArgument(model_dir, ": tensor ", slot.name, " is missing");
    }
    const auto& [view, file] = found->second;
    if (!ScalarTypeOfSafetensors(view.dtype)) {
      return InvalidArgument(model_dir, ": tensor ", slot.name, " has dtype ", view.dtype);
    }
    const LowRankAdapter adapter = merged.by_weight[slot.name];
    by_name[slot.name] = {[view, file, dtype, adapter, saved = merged.saved[slot.name]] {
                            const at::Tensor base =
                                (saved.defined() ? saved : StoredTensor(view, file)).to(dtype);
                            return adapter.defined() ? MergeAdapter(base, adapter) : base;
                          },
                          [view, file] { file->Release(view); }};
  }
  return HashWeights(config, dtype, &by_name);
}

}  // namespace

std::future<absl::StatusOr<std::string>> StartWeightsRevision(const Decoder& decoder) {
  std::map<std::string, HashedTensor> by_name;
  for (const auto& [name, parameter] : decoder.Parameters()) {
    by_name[name] = {[tensor = parameter] { return tensor; }, decoder.ReleaserOf(parameter)};
  }
  return std::async(std::launch::async, [config = decoder.config(), by_name = std::move(by_name),
                                         dtype = decoder.dtype()]() mutable {
    return HashWeights(std::move(config), dtype, &by_name);
  });
}

std::future<absl::StatusOr<std::string>> StartStoredRevision(
    const std::string& model_dir, const std::string& dtype, const std::string& merged_adapter_dir) {
  return std::async(std::launch::async,
                    [model_dir, dtype, merged_adapter_dir]() -> absl::StatusOr<std::string> {
                      TAOPD_ASSIGN_OR_RETURN(const DataType type, ParseDtype(dtype, dtype));
                      try {
                        return HashStored(model_dir, ScalarTypeOf(type), merged_adapter_dir);
                      } catch (const std::exception& error) {
                        return StatusOfException(error, model_dir);
                      }
                    });
}

absl::StatusOr<std::string> WeightsRevision(const Decoder& decoder) {
  return StartWeightsRevision(decoder).get();
}

}  // namespace taopd
