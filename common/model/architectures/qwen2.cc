// Qwen2, Qwen2.5, Qwen2.5-Math, and models trained from them (the R1 distills, OpenThinker,
// JustRL): Llama's blocks with biases in the q, k and v projections.
#include "common/model/architectures/architecture.h"

namespace taopd {
namespace {

absl::Status FixQwen2Config(const nlohmann::ordered_json& json, ModelConfig* config) {
  config->qk_norm = false;
  // Fixed in transformers' Qwen2Attention; config.json cannot change it.
  config->attention_bias = true;
  config->attention_output_bias = false;
  if (config->mlp_bias) return Unimplemented("mlp_bias true: Qwen2 has no biases in its MLP");
  TAOPD_RETURN_IF_ERROR(RequireKeyValueHeads(json, config));
  TAOPD_RETURN_IF_ERROR(ReadSlidingLayers(json, config));
  return DeriveHeadDim(config);
}

}  // namespace

const Architecture& Qwen2Architecture() {
  static const Architecture* const kQwen2 = new Architecture{
      "Qwen2ForCausalLM", "qwen2", TensorNames{}, &FixQwen2Config, &WriteSlidingLayers};
  return *kQwen2;
}

}  // namespace taopd
