// The weights of a transformer: their packed copy, their replacement, and adapters.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <map>
#include <mutex>

#include "common/base/check.h"
#include "common/model/transformer.h"
#include "common/model/weights/lora_weights.h"
#include "kernels/torch/kernel_choice.h"

namespace taopd {

std::shared_ptr<PackedWeights> TransformerDecoder::UpToDateWeights() {
  if (!device().is_cpu() || !UsesCustom(KernelKind::kLinear)) return nullptr;
  const std::lock_guard<std::mutex> lock(packed_mutex_);
  const uint64_t version = weight_version();
  if (packed_ == nullptr) {
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    packed_ = std::make_shared<PackedWeights>(weights_, [this](const at::Tensor& tensor) {
      if (const auto release = ReleaserOf(tensor)) release();
    });
  } else if (version != packed_version_) {
    packed_->Refresh();
  }
  packed_version_ = version;
  return packed_;
}

bool TransformerDecoder::HasPackedWeights() {
  const std::lock_guard<std::mutex> lock(packed_mutex_);
  return packed_ != nullptr;
}

int64_t TransformerDecoder::PrepareInference() {
  const std::shared_ptr<PackedWeights> packed = UpToDateWeights();
  if (packed == nullptr) return 0;
  packed->lm_head();
  return packed->unplanned_bytes();
}

std::vector<const void*> TransformerDecoder::InferenceAddresses() const {
  std::vector<const void*> addresses = rope_.Addresses();
  for (const WeightSlot& slot : slots_) {
    addresses.push_back(slot.tensor->defined() ? slot.tensor->const_data_ptr() : nullptr);
  }
  if (lora_) {
    for (const auto& [name, parameter] : TrainedParameters()) {
      addresses.push_back(parameter.const_data_ptr());
    }
  }
  return addresses;
}

std::function<void()> TransformerDecoder::ReleaserOf(const at::Tensor& parameter) const {
  const auto mapped = release_mapped_.find(parameter.const_data_ptr());
  return mapped != release_mapped_.end() ? mapped->second : nullptr;
}

void TransformerDecoder::KeepForInferenceOnly() {
  const std::shared_ptr<PackedWeights> packed = UpToDateWeights();
  if (packed == nullptr || inference_only_) return;
  packed->DropSources();
  inference_only_ = true;
  packed_version_ = weight_version();
  for (const WeightSlot& slot : slots_) {
    at::Tensor* const tensor = slot.tensor;
    if (tensor->dim() != 2 || tensor == &weights_.embed_tokens_VH) continue;
    if (const auto release = ReleaserOf(*tensor)) {
      release();
    } else {
      *tensor = at::Tensor();
    }
  }
}

void TransformerDecoder::ReplaceParameters(const std::vector<NewParameter>& changed) {
  TAOPD_CHECK(!inference_only_ && !lora_ && group_ == nullptr);
  const c10::InferenceMode normal(false);
  const at::NoGradGuard no_grad;
  const std::shared_ptr<PackedWeights> packed = UpToDateWeights();
  const uint64_t version = weight_version() + 1;
  std::map<std::string, const NewParameter*> by_name;
  for (const NewParameter& parameter : changed) by_name[parameter.name] = &parameter;
  std::map<const void*, at::Tensor> newer;  // by the address of the old tensor
  for (const WeightSlot& slot : slots_) {
    const auto found = by_name.find(slot.name);
    if (found == by_name.end()) continue;
    const NewParameter& parameter = *found->second;
    const auto mapped = release_mapped_.extract(slot.tensor->const_data_ptr());
    // Recorded steps and stacked experts read these addresses. A mapped file is read-only.
    if (packed == nullptr && mapped.empty()) {
      slot.tensor->copy_(parameter.tensor);
      continue;
    }
    newer[slot.tensor->const_data_ptr()] = parameter.tensor;
    if (parameter.release) SetMapped(parameter.tensor, parameter.release);
    *slot.tensor = parameter.tensor;
  }
  if (config().tie_word_embeddings) weights_.lm_head_VH = weights_.embed_tokens_VH;
  if (packed != nullptr) packed->Replace(newer);
  replaced_versions_ = 0;
  replaced_versions_ = version - weight_version();
  packed_version_ = version;
}

absl::Status TransformerDecoder::AddAdapters(const LoraOptions& options) {
  LoraOptions resolved = options;
  if (options.dir.empty()) {
    TAOPD_ASSIGN_OR_RETURN(
        resolved.config.target_modules,
        Annotate(ResolveTargetModules(options.config.target_modules, config()), "target_modules"));
    TAOPD_RETURN_IF_ERROR(
        Annotate(ResolveModulesToSave(config(), &resolved.config), "modules_to_save"));
  }
  TAOPD_ASSIGN_OR_RETURN(const LoraAdapters adapters,
                         MakeLoraAdapters(resolved, config(), slots_, device()));
  for (const WeightSlot& slot : slots_) {
    const auto found = adapters.by_weight.find(slot.name);
    if (found != adapters.by_weight.end()) *slot.adapter = found->second;
    if (!IsSavedSlot(slot, adapters.config)) continue;
    const auto saved = adapters.saved.find(slot.name);
    release_mapped_.erase(slot.tensor->const_data_ptr());
    // A mapped tensor cannot be trained.
    *slot.tensor = (saved != adapters.saved.end() ? saved->second : *slot.tensor)
                       .to(device(), dtype(), /*non_blocking=*/false, /*copy=*/true);
  }
  lora_ = adapters.config;
  return absl::OkStatus();
}

std::unique_ptr<Decoder> TransformerDecoder::WithOwnAdapters() const {
  if (!lora_) return nullptr;
  TAOPD_CHECK(group_ == nullptr);
  const c10::InferenceMode normal(false);  // the copies are written later
  const at::NoGradGuard no_grad;
  auto decoder = std::make_unique<TransformerDecoder>(config(), device(), dtype());
  decoder->weights_ = weights_;
  decoder->ListSlots();
  for (const WeightSlot& slot : decoder->slots_) {
    if (IsSavedSlot(slot, *lora_)) *slot.tensor = slot.tensor->detach().clone();
    if (slot.adapter == nullptr || !slot.adapter->defined()) continue;
    slot.adapter->a_RK = slot.adapter->a_RK.detach().clone();
    slot.adapter->b_NR = slot.adapter->b_NR.detach().clone();
  }
  if (config().tie_word_embeddings) {
    decoder->weights_.lm_head_VH = decoder->weights_.embed_tokens_VH;
  }
  decoder->release_mapped_ = release_mapped_;
  decoder->lora_ = lora_;
  decoder->few_weights_ = few_weights_;
  return decoder;
}

}  // namespace taopd
