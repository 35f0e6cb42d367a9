// Llama 1-3: RMSNorm before attention and MLP, rotary positions, SwiGLU, grouped-query attention.
#include "common/model/architecture.h"

namespace taopd {
namespace {

absl::Status FixConfig(const nlohmann::ordered_json& json, ModelConfig* config) {
  config->qk_norm = false;
  if (config->num_key_value_heads == 0) config->num_key_value_heads = config->num_attention_heads;
  if (config->head_dim == 0 && config->num_attention_heads > 0) {
    if (config->hidden_size % config->num_attention_heads != 0) {
      return InvalidArgument("hidden_size ", config->hidden_size,
                             " is no multiple of num_attention_heads ", config->num_attention_heads,
                             " and head_dim is not given");
    }
    config->head_dim = config->hidden_size / config->num_attention_heads;
  }
  return absl::OkStatus();
}

}  // namespace

const Architecture& LlamaArchitecture() {
  static const Architecture* const kLlama =
      new Architecture{"LlamaForCausalLM", "llama", TensorNames{}, &FixConfig};
  return *kLlama;
}

}  // namespace taopd
