// Loads weights from safetensors.
#include <c10/core/InferenceMode.h>

#include <set>

#include "common/base/memory.h"
#include "common/io/safetensors/safetensors.h"
#include "common/model/transformer.h"

namespace taopd {
namespace {

// A tensor on the mapped bytes, which it keeps alive. They are read-only: nobody may write to it.
at::Tensor MapTensor(const TensorView& view, at::ScalarType dtype,
                     std::shared_ptr<const SafetensorsFile> file) {
  // from_blob wants a pointer to non-const; nothing writes through it (see CopyWhereNeeded).
  void* data = const_cast<std::byte*>(view.bytes.data());
  return at::from_blob(
      data, view.shape, [file = std::move(file)](void*) {}, at::TensorOptions().dtype(dtype));
}

// Left in files by older versions of transformers; computed from the configuration here.
bool IsHarmless(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

// A parameter that is trained is written in place, and a mapped one must not be. The format aligns
// tensors to nothing but their own file's order, and unaligned reads of numbers are undefined.
at::Tensor CopyWhereNeeded(const at::Tensor& mapped, at::Device device, at::ScalarType dtype,
                           bool requires_grad) {
  const bool aligned = reinterpret_cast<uintptr_t>(mapped.const_data_ptr()) %
                           static_cast<uintptr_t>(mapped.element_size()) ==
                       0;
  if (!aligned) {
    at::Tensor copy = at::empty_like(mapped);
    std::memcpy(copy.mutable_data_ptr(), mapped.const_data_ptr(), mapped.nbytes());
    return copy.to(device, dtype);
  }
  if (mapped.scalar_type() == dtype && device.is_cpu() && !requires_grad) return mapped;
  return mapped.to(device, dtype, /*non_blocking=*/false, /*copy=*/true);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// "a, b, c and 12 more".
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
    // Older exports store the tied head beside the embedding; transformers ties over it, so it
    // counts for nothing there either.
    if (tied && name == lm_head_name) continue;
    if (!expected.contains(name) && !IsHarmless(name)) unexpected.push_back(name);
  }
  if (!missing.empty()) return InvalidArgument("tensors missing: ", NamesText(missing));
  if (!unexpected.empty()) return InvalidArgument("unexpected tensors: ", NamesText(unexpected));
  return absl::OkStatus();
}

absl::Status CheckTensor(const WeightSlot& slot, const TensorView& view) {
  if (view.shape != slot.shape) {
    return InvalidArgument("tensor ", slot.name, " has shape ", ShapeText(view.shape),
                           ", the configuration asks for ", ShapeText(slot.shape));
  }
  if (!ScalarTypeOfSafetensors(view.dtype)) {
    return InvalidArgument("tensor ", slot.name, " has dtype ", view.dtype,
                           ", not one of F32, BF16, F16");
  }
  return absl::OkStatus();
}

// What "auto" means: config.json's word, or where it has none the type of the stored embedding.
std::string StoredDtype(const ModelConfig& config, const std::string& embedding_dtype) {
  if (!config.dtype.empty()) return config.dtype;
  if (embedding_dtype == "F32") return "float32";
  return embedding_dtype == "BF16" ? "bfloat16" : "float16";
}

// The rows of a larger vocabulary: the old ones, then their mean (see VocabularyChange).
at::Tensor WithNewRows(const at::Tensor& rows_VH, int64_t num_rows) {
  if (rows_VH.size(0) >= num_rows) return rows_VH;
  const at::Tensor mean_1H =
      rows_VH.mean(0, /*keepdim=*/true, at::kFloat).to(rows_VH.scalar_type());
  return at::cat({rows_VH, mean_1H.expand({num_rows - rows_VH.size(0), rows_VH.size(1)})});
}

// Checks names, shapes and types of what is stored before any tensor is made: sizes that the files
// do not bear out cost nothing. Sets config->dtype where config.json is silent.
absl::Status CheckStored(const SafetensorsModel& stored, const TensorNames& names,
                         ModelConfig* config) {
  ModelWeights shapes_only;
  const auto slots = ListWeights(*config, names, &shapes_only);
  TAOPD_RETURN_IF_ERROR(CheckNames(slots, stored, config->tie_word_embeddings, names.lm_head));
  for (const WeightSlot& slot : slots) {
    TAOPD_RETURN_IF_ERROR(CheckTensor(slot, stored.tensors.at(slot.name).first));
  }
  config->dtype = StoredDtype(*config, stored.tensors.at(slots[0].name).first.dtype);
  return absl::OkStatus();
}

// A decoder of the stored weights. Errors do not name the model's directory.
absl::StatusOr<std::unique_ptr<Decoder>> MakeDecoderOf(const SafetensorsModel& stored,
                                                       ModelConfig config,
                                                       const DecoderOptions& options) {
  TAOPD_ASSIGN_OR_RETURN(const at::Device device, ParseDevice(options.device));
  TAOPD_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(config.architecture));
  const TensorNames& names = architecture->names;
  TAOPD_RETURN_IF_ERROR(CheckStored(stored, names, &config));
  TAOPD_ASSIGN_OR_RETURN(const at::ScalarType dtype, ParseDtype(options.dtype, config.dtype));
  if (options.vocabulary) TAOPD_RETURN_IF_ERROR(ChangeVocabulary(*options.vocabulary, &config));
  if (options.requires_grad) TAOPD_RETURN_IF_ERROR(CheckTrains(dtype));
  TAOPD_RETURN_IF_ERROR(CheckWeightsFit(config, device, dtype));
  auto decoder = std::make_unique<TransformerDecoder>(config, device, dtype);
  for (const WeightSlot& slot : decoder->slots()) {
    const auto& [view, file] = stored.tensors.at(slot.name);
    const at::Tensor mapped = MapTensor(view, *ScalarTypeOfSafetensors(view.dtype), file);
    *slot.tensor = CopyWhereNeeded(mapped, device, dtype, options.requires_grad);
    const bool is_copy = slot.tensor->const_data_ptr() != mapped.const_data_ptr();
    if (slot.name == names.embed_tokens || slot.name == names.lm_head) {
      *slot.tensor = WithNewRows(*slot.tensor, slot.shape[0]);
    }
    if (is_copy) {
      file->Release(view);
    } else {
      decoder->SetMapped(*slot.tensor, [file, view] { file->Release(view); });
    }
  }
  decoder->FinishWeights(options.requires_grad);
  return decoder;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Decoder>> LoadDecoder(const std::string& model_dir,
                                                     const DecoderOptions& options) {
  const c10::InferenceMode normal(false);  // parameters may be trained
  try {
    TAOPD_ASSIGN_OR_RETURN(ModelConfig config, LoadModelConfig(model_dir));
    TAOPD_ASSIGN_OR_RETURN(const SafetensorsModel stored, OpenSafetensorsModel(model_dir));
    auto decoder = MakeDecoderOf(stored, std::move(config), options);
    if (!decoder.ok()) return Annotate(decoder.status(), model_dir);
    return decoder;
  } catch (const c10::Error& error) {  // out of memory, of the device or of the machine
    return ResourceExhausted(model_dir, ": ", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(model_dir, ": out of memory");
  }
}

}  // namespace taopd
