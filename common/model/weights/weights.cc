#include "common/model/weights/weights.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "common/base/check.h"
#include "common/base/memory.h"
#include "common/base/status.h"
#include "common/model/config/dtype.h"
#include "kernels/torch/data_type.h"

namespace taopd {
namespace {

class SlotList {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape, WeightInit init, WeightCut cut,
           at::Tensor* tensor) {
    slots_.push_back({name, std::move(shape), init, cut, tensor});
  }
  void AddNorm(const std::string& name, int64_t size, at::Tensor* tensor) {
    Add(name, {size}, WeightInit::kOnes, WeightCut::kWhole, tensor);
  }
  void AddMatrix(const std::string& name, int64_t out, int64_t in, WeightCut cut,
                 at::Tensor* tensor) {
    Add(name, {out, in}, WeightInit::kNormal, cut, tensor);
  }
  void AddProjection(const std::string& name, int64_t out, int64_t in, bool has_bias, WeightCut cut,
                     Projection* projection) {
    AddMatrix(name + ".weight", out, in, cut, &projection->weight);
    slots_.back().adapter = &projection->adapter;
    const WeightCut bias_cut = cut == WeightCut::kColumns ? WeightCut::kFirstRank : cut;
    if (has_bias) Add(name + ".bias", {out}, WeightInit::kZeros, bias_cut, &projection->bias);
  }
  std::vector<WeightSlot> Take() { return std::move(slots_); }

 private:
  std::vector<WeightSlot> slots_;
};

void AddMlp(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
            LayerWeights* layer, SlotList* list) {
  const int64_t H = config.hidden_size, I = config.intermediate_size;
  const bool mlp_bias = config.mlp_bias;
  const auto rows = WeightCut::kRows, columns = WeightCut::kColumns;
  list->AddProjection(prefix + names.gate_proj, I, H, mlp_bias, rows, &layer->gate_proj);
  list->AddProjection(prefix + names.up_proj, I, H, mlp_bias, rows, &layer->up_proj);
  list->AddProjection(prefix + names.down_proj, H, I, mlp_bias, columns, &layer->down_proj);
}

void AddMoe(const ModelConfig& config, const TensorNames& names, const std::string& prefix,
            MoeWeights* moe, SlotList* list) {
  const int64_t H = config.hidden_size, I = config.moe.intermediate_size;
  list->AddMatrix(prefix + names.router, config.moe.num_experts, H, WeightCut::kWhole,
                  &moe->router_EH);
  moe->experts.resize(config.moe.num_experts);
  for (size_t e = 0; e < moe->experts.size(); ++e) {
    const std::string expert = Concat(prefix, names.experts, ".", e, ".");
    const auto rows = WeightCut::kRows, columns = WeightCut::kColumns;
    list->AddMatrix(expert + names.expert_gate_proj, I, H, rows, &moe->experts[e].gate_IH);
    list->AddMatrix(expert + names.expert_up_proj, I, H, rows, &moe->experts[e].up_IH);
    list->AddMatrix(expert + names.expert_down_proj, H, I, columns, &moe->experts[e].down_HI);
  }
}

void AddLayer(const ModelConfig& config, const TensorNames& names, int64_t number,
              LayerWeights* layer, SlotList* list) {
  const std::string prefix = Concat(names.layers, ".", number, ".");
  const int64_t H = config.hidden_size, D = config.head_dim;
  const int64_t Q = config.num_attention_heads * D, K = config.num_key_value_heads * D;
  const bool attention_bias = config.attention_bias;
  const auto rows = WeightCut::kRows, heads = WeightCut::kKeyValueHeads,
             columns = WeightCut::kColumns;
  list->AddNorm(prefix + names.input_norm, H, &layer->input_norm_H);
  list->AddProjection(prefix + names.q_proj, Q, H, attention_bias, rows, &layer->q_proj);
  list->AddProjection(prefix + names.k_proj, K, H, attention_bias, heads, &layer->k_proj);
  list->AddProjection(prefix + names.v_proj, K, H, attention_bias, heads, &layer->v_proj);
  list->AddProjection(prefix + names.o_proj, H, Q, config.attention_output_bias, columns,
                      &layer->o_proj);
  if (config.qk_norm) {
    list->AddNorm(prefix + names.q_norm, D, &layer->q_norm_D);
    list->AddNorm(prefix + names.k_norm, D, &layer->k_norm_D);
  }
  list->AddNorm(prefix + names.post_attention_norm, H, &layer->post_attention_norm_H);
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
  list.AddMatrix(names.embed_tokens, V, H, WeightCut::kVocabulary, &weights->embed_tokens_VH);
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    AddLayer(config, names, static_cast<int64_t>(i), &weights->layers[i], &list);
  }
  list.AddNorm(names.final_norm, H, &weights->final_norm_H);
  if (!config.tie_word_embeddings) {
    list.AddMatrix(names.lm_head, V, H, WeightCut::kVocabulary, &weights->lm_head_VH);
  }
  return list.Take();
}

at::Tensor CutFor(const WeightSlot& slot, const at::Tensor& whole, const ModelConfig& config,
                  const TensorParallel& parallel) {
  if (parallel.size == 1) return whole;
  switch (slot.cut) {
    case WeightCut::kWhole:
      return whole;
    case WeightCut::kRows:
      return whole.narrow(0, parallel.rank * slot.shape[0], slot.shape[0]);
    case WeightCut::kColumns:
      return whole.narrow(1, parallel.rank * slot.shape[1], slot.shape[1]);
    case WeightCut::kKeyValueHeads: {
      const int64_t first_head = parallel.rank * config.num_key_value_heads / parallel.size;
      return whole.narrow(0, first_head * config.head_dim, slot.shape[0]);
    }
    case WeightCut::kVocabulary:
      return whole.narrow(0, parallel.FirstId(config.vocab_size), slot.shape[0]);
    case WeightCut::kFirstRank:
      return parallel.rank == 0 ? whole : at::zeros_like(whole);
  }
  TAOPD_CHECK(false);
  return at::Tensor();
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
  const std::optional<DataType> type = DataTypeOfSafetensors(dtype);
  return type ? std::optional(ScalarTypeOf(*type)) : std::nullopt;
}

std::string SafetensorsDtype(at::ScalarType dtype) { return SafetensorsDtype(DataTypeOf(dtype)); }

std::string ConfigDtype(at::ScalarType dtype) { return ConfigDtype(DataTypeOf(dtype)); }

}  // namespace taopd
