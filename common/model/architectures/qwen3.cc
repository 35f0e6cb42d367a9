// Qwen3 dense: Llama's blocks, with RMSNorm over each head of q and k before the rotation, and a
// head size that hidden_size and num_attention_heads do not determine.
#include "common/model/architectures/architecture.h"

namespace taopd {
namespace {

// The default of transformers' Qwen3Config.head_dim if config.json omits it.
constexpr int64_t kDefaultHeadDim = 128;

absl::Status FixQwen3Config(const nlohmann::ordered_json& json, ModelConfig* config) {
  config->qk_norm = true;
  if (config->mlp_bias) return Unimplemented("mlp_bias true: Qwen3 has no biases in its MLP");
  if (config->head_dim == 0) config->head_dim = kDefaultHeadDim;
  TAOPD_RETURN_IF_ERROR(RequireKeyValueHeads(json, config));
  return ReadSlidingLayers(json, config);
}

}  // namespace

const Architecture& Qwen3Architecture() {
  static const Architecture* const kQwen3 = new Architecture{
      "Qwen3ForCausalLM", "qwen3", TensorNames{}, &FixQwen3Config, &WriteSlidingLayers};
  return *kQwen3;
}

}  // namespace taopd
