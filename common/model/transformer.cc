#include "common/model/transformer.h"

#include <torch/csrc/autograd/grad_mode.h>

#include "common/base/check.h"
#include "common/model/layers/attention.h"
#include "common/model/layers/attention_plan.h"
#include "kernels/torch/gemm/linear.h"
#include "kernels/torch/layers/layers.h"

namespace taopd {
namespace {

at::Tensor Project(const at::Tensor& x, const Projection& projection) {
  return Linear(x, projection.weight, projection.bias);
}

at::Tensor AttentionBlock(const at::Tensor& x_TH, const LayerWeights& weights,
                          const ModelConfig& config, const Rotation& rotation,
                          const AttentionPlan& plan, KvCache* cache, int64_t layer) {
  const auto split_heads = [&](const at::Tensor& x, int64_t num_heads) {
    return x.view({x.size(0), num_heads, config.head_dim});
  };
  const at::Tensor q_TND = split_heads(Project(x_TH, weights.q_proj), config.num_attention_heads);
  const at::Tensor k_TND = split_heads(Project(x_TH, weights.k_proj), config.num_key_value_heads);
  const at::Tensor v_TND = split_heads(Project(x_TH, weights.v_proj), config.num_key_value_heads);
  // The weights of the norms are undefined where the model has none.
  const auto ready = [&](const at::Tensor& x_TND, const at::Tensor& norm_D) {
    return NormRotateHeads(x_TND, norm_D, config.rms_norm_eps, rotation.cos_T1D, rotation.sin_T1D);
  };
  return Project(Attention(ready(q_TND, weights.q_norm_D), ready(k_TND, weights.k_norm_D), v_TND,
                           {layer, config.SlidingWindow(layer)}, plan, cache),
                 weights.o_proj);
}

at::Tensor MlpBlock(const at::Tensor& x_TH, const LayerWeights& weights) {
  return Project(SwiGlu(Project(x_TH, weights.gate_proj), Project(x_TH, weights.up_proj)),
                 weights.down_proj);
}

}  // namespace

TransformerDecoder::TransformerDecoder(const ModelConfig& config, at::Device device,
                                       at::ScalarType dtype)
    : Decoder(config, device, dtype), rope_(config.rope, config.head_dim, device, dtype) {
  const auto architecture = FindArchitecture(config.architecture);
  TAOPD_CHECK(architecture.ok());
  slots_ = ListWeights(this->config(), (*architecture)->names, &weights_);
}

void TransformerDecoder::FinishWeights(bool requires_grad) {
  for (LayerWeights& layer : weights_.layers) {
    if (layer.moe.router_EH.defined() && HasGroupedProducts(layer.moe.router_EH, config().moe)) {
      StackExperts(&layer.moe);
    }
  }
  for (const WeightSlot& slot : slots_) slot.tensor->set_requires_grad(requires_grad);
  if (config().tie_word_embeddings) weights_.lm_head_VH = weights_.embed_tokens_VH;
}

std::vector<NamedParameter> TransformerDecoder::Parameters() const {
  std::vector<NamedParameter> parameters;
  for (const WeightSlot& slot : slots_) parameters.emplace_back(slot.name, *slot.tensor);
  return parameters;
}

at::Tensor TransformerDecoder::Forward(const PackedBatch& batch, KvCache* cache) {
  const int64_t num_tokens = batch.token_ids_T.size(0);
  if (num_tokens == 0) return at::empty({0, config().hidden_size}, weights_.final_norm_H.options());
  const AttentionPlan plan = MakeAttentionPlan(
      batch, cache, device(), dtype(), config().HasSlidingLayers() ? config().sliding_window : 0);
  const Rotation rotation = rope_.Gather(plan.positions_T, plan.num_positions);
  at::Tensor ids_T = batch.token_ids_T;
  if (plan.num_rows > num_tokens) {
    ids_T = at::constant_pad_nd(ids_T, {0, plan.num_rows - num_tokens});
  }
  // As transformers: the padding token's row of the embedding gets no gradient from being read.
  at::Tensor hidden_TH =
      at::embedding(weights_.embed_tokens_VH, ids_T, config().pad_token_id.value_or(-1));
  const double eps = config().rms_norm_eps;
  const size_t num_layers = weights_.layers.size();
  // Each block's output is added to the residual stream together with the next block's norm.
  const auto norm_of_layer = [&](size_t i) {
    return i < num_layers ? weights_.layers[i].input_norm_H : weights_.final_norm_H;
  };
  at::Tensor normed_TH = RmsNorm(hidden_TH, norm_of_layer(0), eps);
  for (size_t i = 0; i < num_layers; ++i) {
    const LayerWeights& layer = weights_.layers[i];
    SumAndNorm next = AddRmsNorm(
        hidden_TH,
        AttentionBlock(normed_TH, layer, config(), rotation, plan, cache, static_cast<int64_t>(i)),
        layer.post_attention_norm_H, eps);
    next =
        AddRmsNorm(next.sum_NH,
                   layer.moe.router_EH.defined() ? MoeBlock(next.normed_NH, layer.moe, config().moe)
                                                 : MlpBlock(next.normed_NH, layer),
                   norm_of_layer(i + 1), eps);
    hidden_TH = next.sum_NH;
    normed_TH = next.normed_NH;
  }
  return normed_TH.narrow(0, 0, num_tokens);
}

}  // namespace taopd
