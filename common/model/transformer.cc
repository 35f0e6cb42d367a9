#include "common/model/transformer.h"

#include <torch/csrc/autograd/grad_mode.h>

#include "common/base/check.h"
#include "common/model/attention.h"
#include "common/model/attention_plan.h"
#include "common/model/rms_norm.h"
#include "kernels/torch/linear.h"

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
  at::Tensor q_TND = split_heads(Project(x_TH, weights.q_proj), config.num_attention_heads);
  at::Tensor k_TND = split_heads(Project(x_TH, weights.k_proj), config.num_key_value_heads);
  const at::Tensor v_TND = split_heads(Project(x_TH, weights.v_proj), config.num_key_value_heads);
  if (config.qk_norm) {
    q_TND = RmsNorm(q_TND, weights.q_norm_D, config.rms_norm_eps);
    k_TND = RmsNorm(k_TND, weights.k_norm_D, config.rms_norm_eps);
  }
  return Project(Attention(ApplyRope(q_TND, rotation), ApplyRope(k_TND, rotation), v_TND,
                           {layer, config.SlidingWindow(layer)}, plan, cache),
                 weights.o_proj);
}

// SwiGLU (Shazeer, arXiv:2002.05202).
at::Tensor MlpBlock(const at::Tensor& x_TH, const LayerWeights& weights) {
  return Project(at::silu(Project(x_TH, weights.gate_proj)).mul(Project(x_TH, weights.up_proj)),
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
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    const double eps = config().rms_norm_eps;
    hidden_TH =
        hidden_TH + AttentionBlock(RmsNorm(hidden_TH, layer.input_norm_H, eps), layer, config(),
                                   rotation, plan, cache, static_cast<int64_t>(i));
    const at::Tensor normed_TH = RmsNorm(hidden_TH, layer.post_attention_norm_H, eps);
    hidden_TH =
        hidden_TH + (layer.moe.router_EH.defined() ? MoeBlock(normed_TH, layer.moe, config().moe)
                                                   : MlpBlock(normed_TH, layer));
  }
  return RmsNorm(hidden_TH.narrow(0, 0, num_tokens), weights_.final_norm_H, config().rms_norm_eps);
}

}  // namespace taopd
