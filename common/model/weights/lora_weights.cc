#include "common/model/weights/lora_weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/base/random.h"
#include "common/io/file.h"
#include "common/io/safetensors/safetensors.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/stored_tensor.h"

namespace taopd {
namespace {

constexpr char kPeftPrefix[] = "base_model.model.";
constexpr char kWeightSuffix[] = ".weight";
constexpr char kLoraA[] = ".lora_A.weight";
constexpr char kLoraB[] = ".lora_B.weight";
constexpr char kHead[] = "lm_head";
constexpr char kExperts[] = ".experts.";

// Returns the name of the Linear whose weight is the slot.
std::string ModuleOf(const WeightSlot& slot) {
  return slot.name.substr(0, slot.name.size() - (sizeof(kWeightSuffix) - 1));
}

// Returns the names of all modules, or, where all Linear layers of a last name have an adapter,
// that name.
std::vector<std::string> TargetsOfFile(const std::vector<WeightSlot>& slots,
                                       const std::set<std::string>& modules) {
  std::vector<std::string> targets;
  for (const char* name : kLoraModules) {
    std::vector<std::string> adapted;
    bool all = true;
    for (const WeightSlot& slot : slots) {
      if (slot.adapter == nullptr || !IsLoraTarget(ModuleOf(slot), {name})) continue;
      const bool has = modules.contains(ModuleOf(slot));
      if (has) adapted.push_back(ModuleOf(slot));
      all = all && has;
    }
    if (all && !adapted.empty()) adapted = {name};
    targets.insert(targets.end(), adapted.begin(), adapted.end());
  }
  return targets;
}

at::Tensor InitialA(const LoraOptions& options, const std::string& module, int64_t num_inputs) {
  at::Tensor a_RK = at::empty({options.config.rank, num_inputs}, at::kFloat);
  RandomStream random(options.seed, "lora " + module);
  const double bound = 1 / std::sqrt(static_cast<double>(num_inputs));
  const double deviation = 1 / static_cast<double>(options.config.rank);
  float* const data = a_RK.mutable_data_ptr<float>();
  for (int64_t i = 0; i < a_RK.numel(); ++i) {
    data[i] = static_cast<float>(options.config.init == LoraInit::kGaussian
                                     ? deviation * random.NextNormal()
                                     : bound * (2 * random.NextUniform() - 1));
  }
  return a_RK;
}

// Reads a tensor of the file and removes its name from `left`, the tensors that are not read yet.
absl::StatusOr<at::Tensor> ReadTensor(const std::shared_ptr<const SafetensorsFile>& file,
                                      const std::string& name, const std::vector<int64_t>& shape,
                                      std::set<std::string>* left) {
  const auto found = file->tensors().find(name);
  if (found == file->tensors().end())
    return InvalidArgument(file->path(), ": tensor ", name, " is missing");
  const TensorView& view = found->second;
  TAOPD_RETURN_IF_ERROR(Annotate(CheckTensor(name, view, shape), file->path()));
  left->erase(name);
  const at::Tensor stored = StoredTensor(view, file);
  return stored.to(stored.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

// Reads the weights of modules_to_save, by the names of their slots, and removes them from `left`.
absl::StatusOr<std::map<std::string, at::Tensor>> ReadSavedModules(
    const std::shared_ptr<const SafetensorsFile>& file, const LoraConfig& config,
    const ModelConfig& model, const std::vector<WeightSlot>& slots, std::set<std::string>* left) {
  std::map<std::string, at::Tensor> saved;
  for (const std::string& end : config.modules_to_save) {
    LoraConfig one = config;
    one.modules_to_save = {end};
    const bool is_tied_head = model.tie_word_embeddings && IsSavedModule(kHead, {end});
    if (!is_tied_head && std::none_of(slots.begin(), slots.end(), [&](const WeightSlot& slot) {
          return IsSavedSlot(slot, one);
        })) {
      return InvalidArgument(file->path(), ": modules_to_save has \"", end,
                             "\", which is not a norm, embedding or head of the model");
    }
  }
  for (const WeightSlot& slot : slots) {
    if (!IsSavedSlot(slot, config)) continue;
    TAOPD_ASSIGN_OR_RETURN(saved[slot.name],
                           ReadTensor(file, kPeftPrefix + slot.name, slot.shape, left));
  }
  if (!model.tie_word_embeddings) return saved;
  const std::string head = SavedHeadName();
  const auto embedding = saved.find(slots[0].name);
  const bool has_head = left->contains(head), has_embedding = embedding != saved.end();
  bool unties = has_head != has_embedding && !(has_embedding && config.ensure_weight_tying);
  if (has_head && has_embedding) {
    TAOPD_ASSIGN_OR_RETURN(const at::Tensor values, ReadTensor(file, head, slots[0].shape, left));
    unties = !at::equal(values, embedding->second);
  }
  if (!unties) return saved;
  return Unimplemented(file->path(),
                       ": modules_to_save gives the embedding and the head of a model in which "
                       "they are tied weights of their own; PEFT's ensure_weight_tying = true "
                       "keeps them tied");
}

}  // namespace

bool IsSavedSlot(const WeightSlot& slot, const LoraConfig& config) {
  return slot.adapter == nullptr && slot.name.ends_with(kWeightSuffix) &&
         IsSavedModule(ModuleOf(slot), config.modules_to_save);
}

absl::StatusOr<LoraAdapters> ReadLoraAdapters(const std::string& adapter_dir,
                                              const ModelConfig& model,
                                              const std::vector<WeightSlot>& slots) {
  LoraAdapters adapters;
  TAOPD_ASSIGN_OR_RETURN(adapters.config, ReadLoraConfig(adapter_dir));
  const std::string path = adapter_dir + "/" + kAdapterWeightsFile;
  TAOPD_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsFile> file,
                         SafetensorsFile::Open(path));
  std::set<std::string> left, modules;
  for (const auto& [name, view] : file->tensors()) left.insert(name);
  const int64_t R = adapters.config.rank;
  for (const WeightSlot& slot : slots) {
    const std::string module = kPeftPrefix + ModuleOf(slot);
    if (slot.adapter == nullptr ||
        (!left.contains(module + kLoraA) && !left.contains(module + kLoraB)))
      continue;
    LowRankAdapter& adapter = adapters.by_weight[slot.name];
    TAOPD_ASSIGN_OR_RETURN(adapter.a_RK,
                           ReadTensor(file, module + kLoraA, {R, slot.shape[1]}, &left));
    TAOPD_ASSIGN_OR_RETURN(adapter.b_NR,
                           ReadTensor(file, module + kLoraB, {slot.shape[0], R}, &left));
    adapter.a_RK = adapter.a_RK.to(at::kFloat);
    adapter.b_NR = adapter.b_NR.to(at::kFloat);
    adapter.scale = adapters.config.Scale();
    modules.insert(ModuleOf(slot));
  }
  TAOPD_ASSIGN_OR_RETURN(adapters.saved,
                         ReadSavedModules(file, adapters.config, model, slots, &left));
  adapters.config.ensure_weight_tying =
      model.tie_word_embeddings && adapters.saved.contains(slots[0].name);
  if (!left.empty()) {
    if (left.begin()->find(kExperts) != std::string::npos) {
      return Unimplemented(path, ": tensor ", *left.begin(), ": experts can have no adapter");
    }
    return InvalidArgument(path, ": tensor ", *left.begin(),
                           " is not an adapter of a Linear of the model's attention or MLP, and "
                           "not one of modules_to_save");
  }
  if (modules.empty()) return InvalidArgument(path, ": holds no adapter");
  adapters.config.target_modules = TargetsOfFile(slots, modules);
  return adapters;
}

absl::StatusOr<LoraAdapters> MakeLoraAdapters(const LoraOptions& options, const ModelConfig& model,
                                              const std::vector<WeightSlot>& slots,
                                              at::Device device) {
  LoraAdapters adapters;
  if (!options.dir.empty()) {
    TAOPD_ASSIGN_OR_RETURN(adapters, ReadLoraAdapters(options.dir, model, slots));
    const std::string& base = options.config.base_model;
    if (!base.empty()) adapters.config.base_model = base;
    if (adapters.config.dropout > 0) {
      return Unimplemented(options.dir, ": lora_dropout = ", adapters.config.dropout,
                           ": training with dropout is not supported");
    }
    for (auto& [name, adapter] : adapters.by_weight) {
      adapter.a_RK = adapter.a_RK.to(device);
      adapter.b_NR = adapter.b_NR.to(device);
    }
    return adapters;
  }
  adapters.config = options.config;
  for (const WeightSlot& slot : slots) {
    if (slot.adapter == nullptr || !IsLoraTarget(ModuleOf(slot), options.config.target_modules))
      continue;
    LowRankAdapter& adapter = adapters.by_weight[slot.name];
    adapter.a_RK = InitialA(options, ModuleOf(slot), slot.shape[1]).to(device);
    adapter.b_NR = at::zeros({slot.shape[0], options.config.rank},
                             at::TensorOptions().dtype(at::kFloat).device(device));
    adapter.scale = options.config.Scale();
  }
  return adapters;
}

std::vector<NamedParameter> LoraParameters(const std::vector<WeightSlot>& slots,
                                           const LoraConfig& config) {
  std::vector<NamedParameter> parameters;
  for (const WeightSlot& slot : slots) {
    if (IsSavedSlot(slot, config)) parameters.emplace_back(kPeftPrefix + slot.name, *slot.tensor);
    if (slot.adapter == nullptr || !slot.adapter->defined()) continue;
    const std::string module = kPeftPrefix + ModuleOf(slot);
    parameters.emplace_back(module + kLoraA, slot.adapter->a_RK);
    parameters.emplace_back(module + kLoraB, slot.adapter->b_NR);
  }
  return parameters;
}

absl::StatusOr<std::string> BaseRevision(const Decoder& decoder) {
  const LoraConfig& lora = *decoder.lora();
  if (lora.modules_to_save.empty()) return WeightsRevision(decoder);
  return StartStoredRevision(lora.base_model, ConfigDtype(decoder.dtype()), "").get();
}

std::string SavedHeadName() { return Concat(kPeftPrefix, kHead, kWeightSuffix); }

absl::Status WriteLoraAdapter(const LoraConfig& config,
                              const std::vector<NamedParameter>& parameters,
                              const std::string& adapter_dir) {
  TAOPD_RETURN_IF_ERROR(MakeDirectories(adapter_dir));
  TAOPD_RETURN_IF_ERROR(WriteTensors(adapter_dir + "/" + kAdapterWeightsFile, parameters));
  return WriteFileAtomically(adapter_dir + "/" + kAdapterConfigFile, LoraConfigJson(config));
}

}  // namespace taopd
