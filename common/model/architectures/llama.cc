// Llama 1-3: RMSNorm before attention and MLP, rotary positions (scaled from 3.1 on), SwiGLU,
// grouped-query attention.
#include "common/model/architectures/architecture.h"

namespace taopd {
namespace {

absl::Status FixLlamaConfig(const nlohmann::ordered_json& json, ModelConfig* config) {
  config->qk_norm = false;
  TAOPD_RETURN_IF_ERROR(RefuseSlidingWindow(json, "Llama"));
  if (config->num_key_value_heads == 0) config->num_key_value_heads = config->num_attention_heads;
  return DeriveHeadDim(config);
}

}  // namespace

const Architecture& LlamaArchitecture() {
  static const Architecture* const kLlama =
      new Architecture{"LlamaForCausalLM", "llama", TensorNames{}, &FixLlamaConfig};
  return *kLlama;
}

}  // namespace taopd
