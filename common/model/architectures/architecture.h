// What tells one architecture from another. A new one is a file like qwen3.cc and a row in
// architecture.cc. Knows nothing of LibTorch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/config/model_config.h"

namespace taopd {

// Names of the tensors in a checkpoint. Those of a layer come after "<layers>.<number>."; those of
// a projection are followed by ".weight" or ".bias". The defaults are Llama's.
struct TensorNames {
  std::string embed_tokens = "model.embed_tokens.weight";
  std::string layers = "model.layers";
  std::string final_norm = "model.norm.weight";
  std::string lm_head = "lm_head.weight";

  std::string input_norm = "input_layernorm.weight";
  std::string q_proj = "self_attn.q_proj";
  std::string k_proj = "self_attn.k_proj";
  std::string v_proj = "self_attn.v_proj";
  std::string o_proj = "self_attn.o_proj";
  std::string q_norm = "self_attn.q_norm.weight";
  std::string k_norm = "self_attn.k_norm.weight";
  std::string post_attention_norm = "post_attention_layernorm.weight";
  std::string gate_proj = "mlp.gate_proj";
  std::string up_proj = "mlp.up_proj";
  std::string down_proj = "mlp.down_proj";

  // Mixture of experts: the router, and the matrices of expert e after "<experts>.<e>.".
  std::string router = "mlp.gate.weight";
  std::string experts = "mlp.experts";
  std::string expert_gate_proj = "gate_proj.weight";
  std::string expert_up_proj = "up_proj.weight";
  std::string expert_down_proj = "down_proj.weight";
};

struct Architecture {
  std::string name;        // config.json's architectures[0]
  std::string model_type;  // config.json's model_type
  TensorNames names;
  // Sets what the architecture fixes and the defaults of keys that config.json may leave out, and
  // refuses its own settings that are not implemented. Runs before the sizes are checked.
  absl::Status (*fix_config)(const nlohmann::ordered_json& json, ModelConfig* config);
  // Adds to a config.json the members that fix_config reads; null where there are none.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json* json) = nullptr;
};

const Architecture& LlamaArchitecture();
const Architecture& Qwen2Architecture();
const Architecture& Qwen3Architecture();
const Architecture& Qwen3MoeArchitecture();

// Members that several architectures read alike.
// head_dim = hidden_size / num_attention_heads where it is not given; that must divide.
absl::Status DeriveHeadDim(ModelConfig* config);
// null means one key-value head per head. A missing key is refused: transformers' default is a
// fixed number whatever the number of heads, so the key is more likely forgotten than left out.
absl::Status RequireKeyValueHeads(const nlohmann::ordered_json& json, ModelConfig* config);
// use_sliding_window, sliding_window, and for Qwen2 and Qwen3 which layers slide: layer_types, or
// where that is missing those from max_window_layers on.
absl::Status ReadSlidingLayers(const nlohmann::ordered_json& json, ModelConfig* config);
void WriteSlidingLayers(const ModelConfig& config, nlohmann::ordered_json* json);
// use_sliding_window and sliding_window, for all layers or none.
absl::Status ReadSlidingWindow(const nlohmann::ordered_json& json, ModelConfig* config);
// UNIMPLEMENTED where the file asks for a sliding window.
absl::Status RefuseSlidingWindow(const nlohmann::ordered_json& json, const std::string& model);

// UNIMPLEMENTED, naming the known ones, for an unknown name.
absl::StatusOr<const Architecture*> FindArchitecture(const std::string& name);

}  // namespace taopd
