#include "common/model/weights/weights.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "common/base/check.h"
#include "common/base/memory.h"
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

void AddMlp(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
            LayerWeights* layer, SlotList* list) {
  const int64_t H = config.hidden_size, I = config.intermediate_size;
  const bool mlp_bias = config.mlp_bias;
  list->AddProjection(prefix + names.gate_proj, I, H, mlp_bias, &layer->gate_proj);
  list->AddProjection(prefix + names.up_proj, I, H, mlp_bias, &layer->up_proj);
  list->AddProjection(prefix + names.down_proj, H, I, mlp_bias, &layer->down_proj);
}

void AddMoe(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
            MoeWeights* moe, SlotList* list) {
  const int64_t H = config.hidden_size, I = config.moe.intermediate_size;
  list->Add(prefix + names.router, {config.moe.num_experts, H}, WeightInit::kNormal,
            &moe->router_EH);
  moe->experts.resize(config.moe.num_experts);
  for (size_t e = 0; e < moe->experts.size(); ++e) {
    const std::string expert = Concat(prefix, names.experts, ".", e, ".");
    list->Add(expert + names.expert_gate_proj, {I, H}, WeightInit::kNormal,
              &moe->experts[e].gate_IH);
    list->Add(expert + names.expert_up_proj, {I, H}, WeightInit::kNormal, &moe->experts[e].up_IH);
    list->Add(expert + names.expert_down_proj, {H, I}, WeightInit::kNormal,
              &moe->experts[e].down_HI);
  }
}

void AddLayer(const ModelConfig& config, const TensorNames& names, int64_t number,
              LayerWeights* layer, SlotList* list) {
  const std::string prefix = Concat(names.layers, ".", number, ".");
  const int64_t H = config.hidden_size, D = config.head_dim;
  const int64_t Q = config.num_attention_heads * D, K = config.num_key_value_heads * D;
  const bool attention_bias = config.attention_bias;
  list->Add(prefix + names.input_norm, {H}, WeightInit::kOnes, &layer->input_norm_H);
  list->AddProjection(prefix + names.q_proj, Q, H, attention_bias, &layer->q_proj);
  list->AddProjection(prefix + names.k_proj, K, H, attention_bias, &layer->k_proj);
  list->AddProjection(prefix + names.v_proj, K, H, attention_bias, &layer->v_proj);
  list->AddProjection(prefix + names.o_proj, H, Q, config.attention_output_bias, &layer->o_proj);
  if (config.qk_norm) {
    list->Add(prefix + names.q_norm, {D}, WeightInit::kOnes, &layer->q_norm_D);
    list->Add(prefix + names.k_norm, {D}, WeightInit::kOnes, &layer->k_norm_D);
  }
  list->Add(prefix + names.post_attention_norm, {H}, WeightInit::kOnes,
            &layer->post_attention_norm_H);
  if (config.IsSparse(number)) {
    AddMoe(config, names, prefix, &layer->moe, list);
  } else {
    AddMlp(config, names, prefix, layer, list);
  }
}

}  // namespace

std::vector<WeightSlot> ListWeights(const ModelConfig& config, const TensorNames& names,
                                    ModelWeights* weights) {
  const int64_t V = config.vocab_size, H = config.hidden_size;
  weights->layers.resize(config.num_hidden_layers);
  SlotList list;
  list.Add(names.embed_tokens, {V, H}, WeightInit::kNormal, &weights->embed_tokens_VH);
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    AddLayer(config, names, static_cast<int64_t>(i), &weights->layers[i], &list);
  }
  list.Add(names.final_norm, {H}, WeightInit::kOnes, &weights->final_norm_H);
  if (!config.tie_word_embeddings) {
    list.Add(names.lm_head, {V, H}, WeightInit::kNormal, &weights->lm_head_VH);
  }
  return list.Take();
}

absl::Status CheckWeightsFit(const ModelConfig& config, at::Device device, at::ScalarType dtype) {
  const int64_t size_bytes = config.NumParameters() * static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t available_bytes =
      device.is_cpu()
          ? AvailableMemoryBytes()
          : static_cast<int64_t>(
                c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first);
  if (size_bytes <= available_bytes) return absl::OkStatus();
  return ResourceExhausted("a model of ", config.NumParameters(), " parameters takes ",
                           MemoryText(size_bytes), " as ", ConfigDtype(dtype), "; ", device.str(),
                           " has ", MemoryText(available_bytes), " available");
}

absl::Status CheckTrains(at::ScalarType dtype) {
  if (dtype == at::kFloat || dtype == at::kBFloat16) return absl::OkStatus();
  return InvalidArgument("dtype ", ConfigDtype(dtype),
                         " cannot be trained (its gradients underflow without a scaled loss); name "
                         "bfloat16 or float32");
}

std::optional<at::ScalarType> ScalarTypeOfSafetensors(const std::string& dtype) {
  if (dtype == "F32") return at::kFloat;
  if (dtype == "BF16") return at::kBFloat16;
  if (dtype == "F16") return at::kHalf;
  return std::nullopt;
}

std::string SafetensorsDtype(at::ScalarType dtype) {
  TAOPD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
  return dtype == at::kFloat ? "F32" : dtype == at::kBFloat16 ? "BF16" : "F16";
}

std::string ConfigDtype(at::ScalarType dtype) {
  TAOPD_CHECK(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
  return dtype == at::kFloat ? "float32" : dtype == at::kBFloat16 ? "bfloat16" : "float16";
}

}  // namespace taopd
