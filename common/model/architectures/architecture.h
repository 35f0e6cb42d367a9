// The properties that distinguish one architecture from another. To add an architecture, write a
// file like qwen3.cc, declare its function here and add it to kArchitectures. This folder does not
// depend on LibTorch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "common/model/config/model_config.h"

namespace taopd {

// The names of the tensors in a checkpoint. The defaults are Llama's. A layer's tensors have the
// prefix "<layers>.<number>.", and a projection's name is followed by ".weight" or ".bias".
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

  // A mixture of experts: the router, and the matrices of expert e with the prefix
  // "<experts>.<e>.".
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
  // Sets what the architecture fixes and the defaults of keys that config.json may omit, and
  // refuses settings of the architecture that are not implemented. Runs before the sizes are
  // checked.
  absl::Status (*fix_config)(const nlohmann::ordered_json& json, ModelConfig* config);
  // Adds the members that fix_config reads to a config.json. Null if there are none.
  void (*write_config)(const ModelConfig& config, nlohmann::ordered_json* json) = nullptr;
};

const Architecture& LlamaArchitecture();
const Architecture& Qwen2Architecture();
const Architecture& Qwen3Architecture();
const Architecture& Qwen3MoeArchitecture();

// All architectures that can be loaded.
using ArchitectureFunction = const Architecture& (*)();
inline constexpr ArchitectureFunction kArchitectures[] = {
    &LlamaArchitecture, &Qwen2Architecture, &Qwen3Architecture, &Qwen3MoeArchitecture};

// The functions below read members that several architectures share.

// Sets head_dim to hidden_size / num_attention_heads unless it is given. Returns INVALID_ARGUMENT
// if the quotient is not a whole number.
absl::Status DeriveHeadDim(ModelConfig* config);
// Reads num_key_value_heads; null means one key-value head per head. A missing key is refused:
// transformers' default does not depend on the number of heads, so the key has more likely been
// forgotten than omitted.
absl::Status RequireKeyValueHeads(const nlohmann::ordered_json& json, ModelConfig* config);
// Reads use_sliding_window and sliding_window, and determines which layers slide (Qwen2 and Qwen3):
// those in layer_types, or, if that is missing, the layers from max_window_layers on.
absl::Status ReadSlidingLayers(const nlohmann::ordered_json& json, ModelConfig* config);
void WriteSlidingLayers(const ModelConfig& config, nlohmann::ordered_json* json);
// Reads use_sliding_window and sliding_window, which apply to all layers or none.
absl::Status ReadSlidingWindow(const nlohmann::ordered_json& json, ModelConfig* config);
// Returns UNIMPLEMENTED if the file requests a sliding window.
absl::Status RefuseSlidingWindow(const nlohmann::ordered_json& json, const std::string& model);

// Returns the architecture, or UNIMPLEMENTED with the known names if the name is unknown.
absl::StatusOr<const Architecture*> FindArchitecture(const std::string& name);

}  // namespace taopd
