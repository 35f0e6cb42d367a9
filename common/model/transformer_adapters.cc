// The adapters of a decoder: adding them to a base, and copying them to share it.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "common/base/check.h"
#include "common/model/transformer.h"
#include "common/model/weights/lora_weights.h"

namespace taopd {

absl::Status TransformerDecoder::AddAdapters(const LoraOptions& options) {
  LoraOptions resolved = options;
  if (options.dir.empty()) {
    auto modules = ResolveTargetModules(options.config.target_modules, config());
    if (!modules.ok()) return Annotate(modules.status(), "target_modules");
    resolved.config.target_modules = *std::move(modules);
    const absl::Status saved = ResolveModulesToSave(config(), &resolved.config);
    if (!saved.ok()) return Annotate(saved, "modules_to_save");
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
