// Qwen3-MoE (Qwen3-30B-A3B): Qwen3's attention, with a mixture of experts instead of the MLP in
// every layer, or only in the layers that decoder_sparse_step and mlp_only_layers select.
#include "common/model/architectures/architecture.h"
#include "common/model/config/config_fields.h"

namespace taopd {
namespace {

using Json = nlohmann::ordered_json;

// The limit over all layers together, because a list of tensors this long is built before any file
// is read.
constexpr int64_t kMaxExpertsOfAllLayers = 1 << 17;

// Returns the layers that keep a dense MLP whatever decoder_sparse_step is.
absl::StatusOr<std::vector<bool>> ReadMlpOnlyLayers(const Json& json, int64_t num_layers) {
  std::vector<bool> dense(num_layers, false);
  const Json* list = FindField(json, "mlp_only_layers");
  if (list == nullptr) return dense;
  if (!list->is_array()) return InvalidArgument("mlp_only_layers is not a list");
  for (const Json& item : *list) {
    const Json wrapped = {{"mlp_only_layers", item}};
    int64_t layer = -1;
    TAOPD_RETURN_IF_ERROR(ReadInt(wrapped, "mlp_only_layers", 0, num_layers - 1, &layer));
    if (layer >= 0) dense[layer] = true;
  }
  return dense;
}

// The defaults are those of transformers' Qwen3MoeConfig.
absl::Status ReadMoe(const Json& json, ModelConfig* config) {
  MoeConfig& moe = config->moe;
  moe.num_experts = 128;
  // transformers 5 writes num_local_experts.
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "num_experts", 1, 4096, &moe.num_experts));
  int64_t num_local_experts = moe.num_experts;
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "num_local_experts", 1, 4096, &num_local_experts));
  if (FindField(json, "num_experts") != nullptr && num_local_experts != moe.num_experts) {
    return InvalidArgument("num_experts ", moe.num_experts, " differs from num_local_experts ",
                           num_local_experts);
  }
  moe.num_experts = num_local_experts;
  if (moe.num_experts * config->num_hidden_layers > kMaxExpertsOfAllLayers) {
    return InvalidArgument("num_experts ", moe.num_experts, " times num_hidden_layers ",
                           config->num_hidden_layers, " exceeds ", kMaxExpertsOfAllLayers);
  }
  moe.experts_per_token = 8;
  TAOPD_RETURN_IF_ERROR(
      ReadInt(json, "num_experts_per_tok", 1, moe.num_experts, &moe.experts_per_token));
  if (moe.experts_per_token > moe.num_experts) {
    return InvalidArgument("num_experts_per_tok ", moe.experts_per_token, " exceeds num_experts ",
                           moe.num_experts);
  }
  moe.intermediate_size = 768;
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "moe_intermediate_size", 1, 1 << 20, &moe.intermediate_size));
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "norm_topk_prob", &moe.normalize_gates));
  int64_t decoder_sparse_step = 1;
  TAOPD_RETURN_IF_ERROR(ReadInt(json, "decoder_sparse_step", 1, 1 << 20, &decoder_sparse_step));
  TAOPD_ASSIGN_OR_RETURN(const std::vector<bool> dense,
                         ReadMlpOnlyLayers(json, config->num_hidden_layers));
  for (int64_t i = 0; i < config->num_hidden_layers; ++i) {
    moe.sparse_layers.push_back(!dense[i] && (i + 1) % decoder_sparse_step == 0);
  }
  return absl::OkStatus();
}

absl::Status FixQwen3MoeConfig(const Json& json, ModelConfig* config) {
  config->qk_norm = true;
  if (config->mlp_bias) return Unimplemented("mlp_bias true: Qwen3-MoE has no biases in its MLP");
  // The loss has no term for the router's load balance (verl also trains these models without it).
  bool output_router_logits = false;
  TAOPD_RETURN_IF_ERROR(ReadBool(json, "output_router_logits", &output_router_logits));
  if (output_router_logits) {
    return Unimplemented(
        "output_router_logits true: the router's auxiliary loss is not implemented");
  }
  TAOPD_RETURN_IF_ERROR(RequireKeyValueHeads(json, config));
  TAOPD_RETURN_IF_ERROR(DeriveHeadDim(config));
  TAOPD_RETURN_IF_ERROR(ReadSlidingWindow(json, config));
  return ReadMoe(json, config);
}

void WriteConfig(const ModelConfig& config, Json* json) {
  const MoeConfig& moe = config.moe;
  if (config.HasSlidingLayers()) {
    (*json)["use_sliding_window"] = true;
    (*json)["sliding_window"] = config.sliding_window;
  }
  (*json)["num_experts"] = moe.num_experts;
  (*json)["num_experts_per_tok"] = moe.experts_per_token;
  (*json)["moe_intermediate_size"] = moe.intermediate_size;
  (*json)["norm_topk_prob"] = moe.normalize_gates;
  (*json)["decoder_sparse_step"] = 1;
  Json dense = Json::array();
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    if (!config.IsSparse(i)) dense.push_back(i);
  }
  (*json)["mlp_only_layers"] = dense;
}

}  // namespace

const Architecture& Qwen3MoeArchitecture() {
  static const Architecture* const kQwen3Moe = new Architecture{
      "Qwen3MoeForCausalLM", "qwen3_moe", TensorNames{}, &FixQwen3MoeConfig, &WriteConfig};
  return *kQwen3Moe;
}

}  // namespace taopd
