#include "trainer/student/student.h"

#include <absl/strings/str_join.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>

#include "common/base/memory.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/io/safetensors/safetensors.h"
#include "common/model/config/dtype.h"
#include "common/model/weights/lora_weights.h"
#include "common/model/weights/stored_tensor.h"
#include "common/model/weights/weights.h"
#include "common/text/tokenizer/tokenizer_config.h"
#include "kernels/torch/data_type.h"
#include "taopd/base/round_up.h"

namespace taopd {
namespace {

int64_t OfShard(int64_t num_parameters, const AdamWOptions& shard) {
  return CeilDiv(num_parameters, shard.layout.num_shards);
}

int64_t GradientBytes(int64_t num_parameters, const AdamWOptions& shard) {
  return 4 * (shard.shard_gradients ? OfShard(num_parameters, shard) : num_parameters);
}

std::string NamesText(const std::vector<std::string>& names) {
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

// Returns the names of the parameters that a configuration of adapters saves.
std::vector<std::string> SavedNames(const Decoder& decoder, const LoraConfig& lora) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : decoder.Parameters()) {
    const std::string module = name.substr(0, name.rfind('.'));
    if (IsSavedModule(module, lora.modules_to_save)) names.push_back(name);
  }
  return names;
}

// Returns an error that names the first setting in which the adapter of a directory differs from
// `wanted`, the settings of the run.
absl::Status CheckSameAdapters(const std::string& adapter_dir, const LoraConfig& wanted,
                               const Decoder& decoder) {
  const LoraConfig& found = *decoder.lora();
  const std::string but_adapter_has = Concat(", but the adapter in ", adapter_dir, " has ");
  if (found.rank != wanted.rank)
    return InvalidArgument("lora.rank = ", wanted.rank, but_adapter_has, "r = ", found.rank);
  if (found.Scale() != wanted.Scale()) {
    return InvalidArgument("lora.alpha = ", wanted.alpha, but_adapter_has,
                           "lora_alpha = ", found.alpha,
                           found.use_rslora ? " with use_rslora" : "");
  }
  TAOPD_ASSIGN_OR_RETURN(std::vector<std::string> modules,
                         ResolveTargetModules(wanted.target_modules, decoder.config()));
  std::vector<std::string> saved_modules = found.target_modules;
  std::ranges::sort(modules);
  std::ranges::sort(saved_modules);
  if (modules != saved_modules) {
    return InvalidArgument("lora.target_modules are others than those of the adapter in ",
                           adapter_dir, ": ", NamesText(saved_modules));
  }
  LoraConfig resolved = wanted;
  TAOPD_RETURN_IF_ERROR(ResolveModulesToSave(decoder.config(), &resolved));
  if (SavedNames(decoder, resolved) == SavedNames(decoder, found)) return absl::OkStatus();
  return InvalidArgument("lora.modules_to_save are others than those of the adapter in ",
                         adapter_dir, ": ", NamesText(found.modules_to_save));
}

using nlohmann::json;

absl::StatusOr<std::vector<int32_t>> EndIds(const std::string& path, const json& generation) {
  std::vector<int32_t> ids;
  if (!generation.is_object()) return InvalidArgument(path, " is not an object");
  if (!generation.contains("eos_token_id") || generation["eos_token_id"].is_null()) return ids;
  const json& value = generation["eos_token_id"];
  for (const json& id : value.is_array() ? value : json::array({value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      return InvalidArgument(path, ": eos_token_id ", id.dump().substr(0, 80),
                             " is not a token id");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

absl::Status OffloadOnCpuError() {
  return InvalidArgument(
      "optimizer.offload = true: the device is a CPU, whose memory is the host's; set it to false");
}

absl::Status CheckTrainingFits(const std::string& model, ModelConfig config,
                               const DecoderOptions& options, const OptimizerConfig& optimizer,
                               const AdamWOptions& shard) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(options.device));
  TAOPD_ASSIGN_OR_RETURN(
      const DataType type,
      ParseDtype(options.dtype, config.dtype.empty() ? "float32" : config.dtype));
  const at::ScalarType dtype = ScalarTypeOf(type);
  if (options.vocabulary) TAOPD_RETURN_IF_ERROR(ChangeVocabulary(*options.vocabulary, &config));
  const int64_t value_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  LoraCounts lora;
  if (options.lora) {
    TAOPD_ASSIGN_OR_RETURN(lora, CountTrained(config, options.lora->config));
  }
  // Values in the student's type; adapters are float32.
  const int64_t num_weights = options.lora ? lora.saved() : config.NumParameters();
  const int64_t num_parameters = lora.adapters + num_weights;
  const int64_t weight_bytes =
      config.NumParameters() * value_bytes + 4 * lora.adapters + value_bytes * lora.saved();
  const auto state_bytes_of = [&](int64_t num_values, bool is_float) {
    return (optimizer.StateBytesPerParameter(is_float) + (shard.keeps_average ? 4 : 0)) *
           OfShard(num_values, shard);
  };
  const int64_t state_bytes = state_bytes_of(lora.adapters, /*is_float=*/true) +
                              state_bytes_of(num_weights, dtype == at::kFloat);
  int64_t training_bytes = GradientBytes(num_parameters, shard);
  if (!optimizer.offload) {
    training_bytes += state_bytes;
  } else if (device.is_cpu()) {
    return OffloadOnCpuError();
  } else if (const int64_t host_bytes = AvailableMemoryBytes(); state_bytes > host_bytes) {
    return ResourceExhausted(model, ": optimizer.offload keeps ", MemoryText(state_bytes),
                             " of AdamW's state on the host, which has ", MemoryText(host_bytes),
                             " available");
  }
  const int64_t available_bytes =
      device.is_cpu()
          ? AvailableMemoryBytes()
          : static_cast<int64_t>(
                c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
  if (weight_bytes + training_bytes <= available_bytes) return absl::OkStatus();
  return ResourceExhausted(model, ": training ", num_parameters, " parameters takes ",
                           MemoryText(weight_bytes), " of weights and ", MemoryText(training_bytes),
                           " of gradients and optimizer state; ", device.str(), " has ",
                           MemoryText(available_bytes), " available");
}

absl::StatusOr<Student> LoadStudent(const std::string& model_dir, const std::string& dtype,
                                    const std::string& device, const OptimizerConfig* optimizer,
                                    const std::string& tokenizer_dir, const AdamWOptions& shard,
                                    const std::optional<LoraOptions>& lora) {
  Student student;
  DecoderOptions options = {
      .dtype = dtype, .device = device, .requires_grad = optimizer != nullptr};
  if (optimizer != nullptr) options.lora = lora;
  const bool is_adapter = IsAdapterDir(model_dir);
  const bool has_other_base = is_adapter && options.lora && !lora->config.base_model.empty();
  TAOPD_ASSIGN_OR_RETURN(const std::string base_dir,
                         BaseModelDir(has_other_base ? lora->config.base_model : model_dir));
  if (options.lora) {
    if (is_adapter) options.lora->dir = model_dir;
    options.lora->config.base_model = std::filesystem::absolute(base_dir).lexically_normal();
  }
  // An adapter's directory need not have a tokenizer.
  const std::string own_dir = FileExists(model_dir + "/tokenizer.json") ? model_dir : base_dir;
  student.tokenizer_dir = tokenizer_dir.empty() ? own_dir : tokenizer_dir;
  auto tokenizer = Tokenizer::Load(student.tokenizer_dir);
  if (tokenizer.ok()) {
    student.tokenizer = *std::move(tokenizer);
    TAOPD_ASSIGN_OR_RETURN(student.tokenizer_files, ReadTokenizerFiles(student.tokenizer_dir));
  } else if (absl::IsNotFound(tokenizer.status()) && tokenizer_dir.empty()) {
    student.tokenizer_dir.clear();
  } else {
    return tokenizer.status();
  }
  if (!tokenizer_dir.empty()) {
    TAOPD_ASSIGN_OR_RETURN(options.vocabulary,
                           ReadVocabularyChange(tokenizer_dir, *student.tokenizer));
  }
  if (optimizer != nullptr) {
    TAOPD_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(base_dir));
    TAOPD_RETURN_IF_ERROR(
        CheckTrainingFits(model_dir, std::move(config), options, *optimizer, shard));
  }
  TAOPD_ASSIGN_OR_RETURN(student.decoder,
                         LoadDecoder(options.lora ? base_dir : model_dir, options));
  if (optimizer == nullptr) return student;
  if (options.lora && is_adapter) {
    TAOPD_RETURN_IF_ERROR(CheckSameAdapters(model_dir, options.lora->config, *student.decoder));
  }
  if (options.lora) {
    TAOPD_ASSIGN_OR_RETURN(student.base_revision, BaseRevision(*student.decoder));
  }
  student.optimizer =
      std::make_unique<AdamW>(student.decoder->TrainedParameters(), *optimizer, shard);
  return student;
}

namespace {

// Copies the matrices of an adapter's file into those of the decoder.
absl::Status ReloadAdapters(const std::string& adapter_dir, const Decoder& decoder) {
  const std::string path = adapter_dir + "/" + kAdapterWeightsFile;
  TAOPD_ASSIGN_OR_RETURN(const std::shared_ptr<const SafetensorsFile> file,
                         SafetensorsFile::Open(path));
  const std::vector<NamedParameter> to = decoder.TrainedParameters();
  for (const auto& [name, matrix] : to) {
    const auto found = file->tensors().find(name);
    if (found != file->tensors().end() &&
        found->second.dtype == SafetensorsDtype(matrix.scalar_type()) &&
        at::IntArrayRef(found->second.shape) == matrix.sizes()) {
      continue;
    }
    return DataLoss(path, ": ", name, " is not the student's");
  }
  // A head that is tied to a saved embedding is stored twice.
  const size_t num_stored = to.size() + (decoder.lora()->ensure_weight_tying ? 1 : 0);
  if (num_stored != file->tensors().size()) {
    return DataLoss(path, " has ", file->tensors().size(), " tensors, the student's adapters have ",
                    num_stored);
  }
  const at::NoGradGuard no_grad;
  for (const auto& [name, matrix] : to) {
    at::Tensor written = matrix;
    written.copy_(StoredTensor(file->tensors().at(name), file));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReloadWeights(const std::string& model_dir, Decoder* decoder) {
  if (decoder->lora() != nullptr) return ReloadAdapters(model_dir, *decoder);
  DecoderOptions options;
  options.dtype = decoder->dtype() == at::kFloat ? "float32" : "bfloat16";
  options.device = "cpu";  // files are mapped into host memory; the copies below move them
  TAOPD_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> stored, LoadDecoder(model_dir, options));
  const std::vector<NamedParameter> from = stored->Parameters(), to = decoder->Parameters();
  if (from.size() != to.size()) {
    return DataLoss(model_dir, " has ", from.size(), " parameters, the model has ", to.size());
  }
  for (size_t i = 0; i < to.size(); ++i) {
    if (from[i].first == to[i].first && from[i].second.sizes() == to[i].second.sizes()) continue;
    return DataLoss(model_dir, ": ", from[i].first, " is not the model's ", to[i].first);
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) {
    at::Tensor parameter = to[i].second;
    parameter.copy_(from[i].second);
  }
  return absl::OkStatus();
}

absl::Status SaveStudentModel(const Student& student, const std::string& model_dir) {
  TAOPD_RETURN_IF_ERROR(WriteTokenizerFiles(student.tokenizer_files, model_dir));
  return SaveDecoder(*student.decoder, model_dir);
}

absl::StatusOr<VocabularyChange> ReadVocabularyChange(const std::string& tokenizer_dir,
                                                      const Tokenizer& tokenizer) {
  VocabularyChange change;
  change.num_tokens = tokenizer.vocab_size();
  TAOPD_ASSIGN_OR_RETURN(const TokenizerConfig config, ReadTokenizerConfig(tokenizer_dir));
  const auto special = FindSpecialTokens(config, tokenizer);
  if (!special.ok()) return Annotate(special.status(), tokenizer_dir);
  change.bos_token_id = special->bos;
  change.pad_token_id = special->pad;
  const std::string generation_path = tokenizer_dir + "/generation_config.json";
  if (FileExists(generation_path)) {
    TAOPD_ASSIGN_OR_RETURN(const json generation, ReadJsonFile(generation_path));
    TAOPD_ASSIGN_OR_RETURN(change.eos_token_ids, EndIds(generation_path, generation));
  }
  if (change.eos_token_ids.empty() && special->eos) change.eos_token_ids = {*special->eos};
  if (change.eos_token_ids.empty()) {
    return InvalidArgument(tokenizer_dir, ": no eos_token, so no response would ever end");
  }
  return change;
}

}  // namespace taopd
