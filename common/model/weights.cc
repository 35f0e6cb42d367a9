#include "common/model/weights.h"

#include "common/base/check.h"
#include "common/base/status.h"

namespace taopd {
namespace {

class SlotList {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape, WeightInit init,
           at::Tensor* tensor) {
    slots_.push_back({name, std::move(shape), init, tensor});
  }
  void AddProjection(const std::string& name, int64_t out, int64_t in, bool has_bias,
                     Projection* projection) {
    Add(name + ".weight", {out, in}, WeightInit::kNormal, &projection->weight);
    if (has_bias) Add(name + ".bias", {out}, WeightInit::kZeros, &projection->bias);
  }
  std::vector<WeightSlot> Take() { return std::move(slots_); }

 private:
  std::vector<WeightSlot> slots_;
};

void AddLayer(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
              LayerWeights* layer, SlotList* list) {
  const int64_t H = config.hidden_size, I = config.intermediate_size, D = config.head_dim;
  const int64_t Q = config.num_attention_heads * D, K = config.num_key_value_heads * D;
  const bool attention_bias = config.attention_bias, mlp_bias = config.mlp_bias;
  list->Add(prefix + names.input_norm, {H}, WeightInit::kOnes, &layer->input_norm_H);
  list->AddProjection(prefix + names.q_proj, Q, H, attention_bias, &layer->q_proj);
  list->AddProjection(prefix + names.k_proj, K, H, attention_bias, &layer->k_proj);
  list->AddProjection(prefix + names.v_proj, K, H, attention_bias, &layer->v_proj);
  list->AddProjection(prefix + names.o_proj, H, Q, attention_bias, &layer->o_proj);
  if (config.qk_norm) {
    list->Add(prefix + names.q_norm, {D}, WeightInit::kOnes, &layer->q_norm_D);
    list->Add(prefix + names.k_norm, {D}, WeightInit::kOnes, &layer->k_norm_D);
  }
  list->Add(prefix + names.post_attention_norm, {H}, WeightInit::kOnes,
            &layer->post_attention_norm_H);
  list->AddProjection(prefix + names.gate_proj, I, H, mlp_bias, &layer->gate_proj);
  list->AddProjection(prefix + names.up_proj, I, H, mlp_bias, &layer->up_proj);
  list->AddProjection(prefix + names.down_proj, H, I, mlp_bias, &layer->down_proj);
}

}  // namespace

std::vector<WeightSlot> ListWeights(const ModelConfig& config, const TensorNames& names,
                                    ModelWeights* weights) {
  const int64_t V = config.vocab_size, H = config.hidden_size;
  weights->layers.resize(config.num_hidden_layers);
  SlotList list;
  list.Add(names.embed_tokens, {V, H}, WeightInit::kNormal, &weights->embed_tokens_VH);
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    AddLayer(config, names, Concat(names.layers, ".", i, "."), &weights->layers[i], &list);
  }
  list.Add(names.final_norm, {H}, WeightInit::kOnes, &weights->final_norm_H);
  if (!config.tie_word_embeddings) {
    list.Add(names.lm_head, {V, H}, WeightInit::kNormal, &weights->lm_head_VH);
  }
  return list.Take();
}

std::optional<at::ScalarType> ScalarTypeOfSafetensors(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  return std::nullopt;
}

std::string SafetensorsDtype(at::ScalarType dtype) {
  TAOPD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16);
  return dtype == at::kFloat ? "F32" : "BF16";
}

std::string ConfigDtype(at::ScalarType dtype) {
  TAOPD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16);
  return dtype == at::kFloat ? "float32" : "bfloat16";
}

}  // namespace taopd
