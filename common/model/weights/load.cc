// The loading of weights from safetensors.
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <set>

#include "common/io/safetensors/safetensors.h"
#include "common/model/config/dtype.h"
#include "common/model/torch_errors.h"
#include "common/model/transformer.h"
#include "common/model/weights/lora_weights.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/stored_tensor.h"
#include "kernels/torch/data_type.h"

namespace taopd {
namespace {

// Returns whether a stored tensor is ignored. Older versions of transformers stored rotary
// frequencies, which are computed from the configuration here.
bool IsIgnored(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

// Returns the slot's part of a tensor of the model of `config`, merged with `adapter` unless that
// is null. A trained parameter is written in place, and a mapped one must not be.
at::Tensor LoadSlot(const WeightSlot& slot, const at::Tensor& stored, const ModelConfig& config,
                    at::Device device, at::ScalarType dtype, const DecoderOptions& options,
                    const LowRankAdapter* adapter) {
  const TensorParallel place = options.group == nullptr ? TensorParallel() : options.group->place();
  // The base is converted before the merge, as the base of a student is.
  const at::Tensor part = CutFor(
      slot, adapter == nullptr ? stored : MergeAdapter(stored.to(dtype), *adapter), config, place);
  const bool is_trained = options.requires_grad && !options.lora;
  if (part.scalar_type() == dtype && device.is_cpu() && !is_trained) {
    return part.contiguous();
  }
  return part.to(device, dtype, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

// Returns a text like "a, b, c and 12 more".
std::string NamesText(const std::vector<std::string>& names) {
  constexpr size_t kMaxNames = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kMaxNames) text += Concat(" and ", names.size() - kMaxNames, " more");
  return text;
}

absl::Status CheckNames(const std::vector<WeightSlot>& slots, const SafetensorsModel& stored,
                        bool tied, const std::string& lm_head_name) {
  std::vector<std::string> missing, unexpected;
  std::set<std::string> expected;
  for (const WeightSlot& slot : slots) {
    expected.insert(slot.name);
    if (!stored.tensors.contains(slot.name)) missing.push_back(slot.name);
  }
  for (const auto& [name, tensor] : stored.tensors) {
    // Older exports store the tied head as well as the embedding. transformers overwrites it with
    // the embedding, so it is ignored.
    if (tied && name == lm_head_name) continue;
    if (!expected.contains(name) && !IsIgnored(name)) unexpected.push_back(name);
  }
  if (!missing.empty()) return InvalidArgument("tensors missing: ", NamesText(missing));
  if (!unexpected.empty()) return InvalidArgument("unexpected tensors: ", NamesText(unexpected));
  return absl::OkStatus();
}

// Returns the rows of a larger vocabulary: the old ones, then their mean (see VocabularyChange).
at::Tensor WithNewRows(const at::Tensor& rows_VH, int64_t num_rows) {
  if (rows_VH.size(0) >= num_rows) return rows_VH;
  const at::Tensor mean_1H =
      rows_VH.mean(0, /*keepdim=*/true, at::kFloat).to(rows_VH.scalar_type());
  return at::cat({rows_VH, mean_1H.expand({num_rows - rows_VH.size(0), rows_VH.size(1)})});
}

// Checks the names, shapes and types of the stored tensors before any tensor is allocated, so that
// sizes that the files do not contain cost nothing. Sets config->dtype if config.json does not.
absl::Status CheckStored(const SafetensorsModel& stored, const TensorNames& names,
                         ModelConfig* config) {
  ModelWeights shapes_only;
  const auto slots = ListWeights(*config, names, &shapes_only);
  TAOPD_RETURN_IF_ERROR(CheckNames(slots, stored, config->tie_word_embeddings, names.lm_head));
  for (const WeightSlot& slot : slots) {
    TAOPD_RETURN_IF_ERROR(CheckTensor(slot.name, stored.tensors.at(slot.name).first, slot.shape));
  }
  if (config->dtype.empty()) {
    const std::string& embedding_dtype = stored.tensors.at(slots[0].name).first.dtype;
    config->dtype = ConfigDtype(*DataTypeOfSafetensors(embedding_dtype));
  }
  return absl::OkStatus();
}

// Returns the adapter of options.merged_adapter_dir; without one, the result is empty.
absl::StatusOr<LoraAdapters> MergedAdapters(const DecoderOptions& options,
                                            const ModelConfig& config, const TensorNames& names) {
  if (options.merged_adapter_dir.empty()) return LoraAdapters();
  ModelWeights shapes_only;
  return ReadLoraAdapters(options.merged_adapter_dir, config,
                          ListWeights(config, names, &shapes_only));
}

// Makes a decoder of the stored weights. Errors do not name the model's directory.
absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoderOf(const SafetensorsModel& stored,
                                                       ModelConfig config,
                                                       const DecoderOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(options.device));
  TAOPD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  const TensorNames& names = architecture->names;
  TAOPD_RETURN_IF_ERROR(CheckStored(stored, names, &config));
  TAOPD_ASSIGN_OR_RETURN(const DataType type, ParseDtype(options.dtype, config.dtype));
  const at::ScalarType dtype = ScalarTypeOf(type);
  TAOPD_ASSIGN_OR_RETURN(const LoraAdapters merged, MergedAdapters(options, config, names));
  if (options.vocabulary) TAOPD_RETURN_IF_ERROR(ChangeVocabulary(*options.vocabulary, &config));
  if (options.requires_grad) TAOPD_RETURN_IF_ERROR(CheckTrains(dtype));
  std::unique_ptr<TransformerDecoder> decoder;
  if (options.group == nullptr) {
    TAOPD_RETURN_IF_ERROR(CheckWeightsFit(config, device, dtype));
    decoder = std::make_unique<TransformerDecoder>(config, device, dtype);
  } else {
    if (options.requires_grad) return Unimplemented("a tensor parallel model cannot be trained");
    const TensorParallel& place = options.group->place();
    TAOPD_RETURN_IF_ERROR(CheckTensorParallel(config, place.size));
    const ModelConfig slice = SliceOf(config, place);
    TAOPD_RETURN_IF_ERROR(CheckWeightsFit(slice, device, dtype));
    decoder = std::make_unique<TransformerDecoder>(slice, device, dtype, config.vocab_size,
                                                   options.group);
  }
  for (const WeightSlot& slot : decoder->slots()) {
    const auto& [view, file] = stored.tensors.at(slot.name);
    const auto adapter = merged.by_weight.find(slot.name);
    const auto saved = merged.saved.find(slot.name);
    const at::Tensor whole = saved == merged.saved.end() ? StoredTensor(view, file) : saved->second;
    *slot.tensor = LoadSlot(slot, whole, config, device, dtype, options,
                            adapter == merged.by_weight.end() ? nullptr : &adapter->second);
    if (options.vocabulary && (slot.name == names.embed_tokens || slot.name == names.lm_head)) {
      *slot.tensor = WithNewRows(*slot.tensor, slot.shape[0]);
    }
    const bool is_copy = slot.tensor->storage().data() != view.bytes.data();
    if (is_copy) {
      file->Release(view);
    } else {
      decoder->SetMapped(*slot.tensor, [file, view] { file->Release(view); });
    }
  }
  if (options.lora) TAOPD_RETURN_IF_ERROR(decoder->AddAdapters(*options.lora));
  decoder->FinishWeights(options.requires_grad);
  return decoder;
}

// Adds the directory to the options if it holds an adapter.
absl::Status UseAdapterDir(const std::string& dir, DecoderOptions* options) {
  if (!IsAdapterDir(dir)) return absl::OkStatus();
  const std::string& other = options->lora ? options->lora->dir : options->merged_adapter_dir;
  if (!other.empty()) {
    return InvalidArgument(dir, ": is itself an adapter, into which the adapter ", other,
                           " cannot be merged");
  }
  if (options->lora) {
    options->lora->dir = dir;
  } else {
    options->merged_adapter_dir = dir;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& given_dir,
                                                     const DecoderOptions& given) {
  const c10::InferenceMode normal(false);  // parameters may be trained
  try {
    DecoderOptions options = given;
    TAOPD_RETURN_IF_ERROR(UseAdapterDir(given_dir, &options));
    TAOPD_ASSIGN_OR_RETURN(const std::string model_dir, BaseModelDir(given_dir));
    TAOPD_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
    TAOPD_ASSIGN_OR_RETURN(const SafetensorsModel stored, OpenSafetensorsModel(model_dir));
    return Annotate(MakeDecoderOf(stored, std::move(config), options), model_dir);
  } catch (const std::exception& error) {
    return StatusOfException(error, given_dir);
  }
}

}  // namespace taopd
