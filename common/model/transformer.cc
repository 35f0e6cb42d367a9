#include "common/model/transformer.h"

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include "common/base/check.h"
#include "common/model/batch_parts.h"
#include "common/model/layers/attention.h"
#include "common/model/layers/paged_attention.h"
#include "common/model/layers/recomputed_part.h"
#include "common/model/parallel/sharded_head.h"
#include "common/model/weights/lora_weights.h"
#include "kernels/torch/attention/self_attention.h"
#include "kernels/torch/gemm/linear.h"
#include "kernels/torch/gemm/linear_parts.h"
#include "kernels/torch/head/head_gemm.h"
#include "kernels/torch/kernel_choice.h"
#include "kernels/torch/layers/embedding.h"
#include "kernels/torch/layers/fused_projections.h"
#include "kernels/torch/layers/gated_mlp.h"
#include "kernels/torch/parallel_loop.h"

namespace taopd {
namespace {

// A core's own caches hold this many bytes. With more weights, threads that compute other rows with
// the same weights would each read them from the memory that they share.
constexpr int64_t kFewWeightsBytes = int64_t{2} << 20;

at::Tensor Project(const at::Tensor& x, const Projection& projection,
                   const PackedWeight* packed = nullptr) {
  return Linear(x, projection.weight, projection.bias, packed, projection.adapter);
}

struct Heads {
  at::Tensor q_TND, k_TKD, v_TKD;
};

// Returns the heads as the projections give them: neither normalized nor rotated.
Heads ProjectHeads(const at::Tensor& x_TH, const LayerWeights& weights, const ModelConfig& config) {
  const auto split_heads = [&](const at::Tensor& x, int64_t num_heads) {
    return x.view({x.size(0), num_heads, config.head_dim});
  };
  return {split_heads(Project(x_TH, weights.q_proj), config.num_attention_heads),
          split_heads(Project(x_TH, weights.k_proj), config.num_key_value_heads),
          split_heads(Project(x_TH, weights.v_proj), config.num_key_value_heads)};
}

// The tensors that a layer of inference writes and the next layer overwrites. The first layer that
// needs a tensor allocates it. If each layer allocated and freed its own, tensors of tens of
// megabytes would get fresh pages each time.
class LayerBuffers {
 public:
  // Returns a contiguous tensor [rows, ...] of x's type, valid until the same name is requested
  // again.
  const at::Tensor& Get(at::Tensor LayerBuffers::*name, at::IntArrayRef shape,
                        const at::Tensor& x) {
    at::Tensor& buffer = this->*name;
    if (!buffer.defined() || buffer.sizes() != shape) buffer = at::empty(shape, x.options());
    return buffer;
  }
  at::Tensor qkv, queries, keys, gate_up, activated;
};

// Returns heads prepared for attention from the fused projection; the values are a slice of it.
Heads ProjectAndRotateHeads(const at::Tensor& x_TH, const PackedLayer& packed,
                            const LayerWeights& weights, const ModelConfig& config,
                            const Rotation& rotation, LayerBuffers* buffers) {
  const int64_t N = config.num_attention_heads, K = config.num_key_value_heads, D = config.head_dim,
                T = x_TH.size(0);
  const at::Tensor& qkv_TC = buffers->Get(&LayerBuffers::qkv, {T, (N + 2 * K) * D}, x_TH);
  packed.qkv.MultiplyInto(x_TH, qkv_TC);
  const RotatedHeads heads = {buffers->Get(&LayerBuffers::queries, {T, N, D}, x_TH),
                              buffers->Get(&LayerBuffers::keys, {T, K, D}, x_TH)};
  NormRotateFused(qkv_TC, weights.q_norm_D, weights.k_norm_D, config.rms_norm_eps, rotation.cos_T1D,
                  rotation.sin_T1D, heads);
  return {heads.queries_TND, heads.keys_TKD, qkv_TC.narrow(1, (N + K) * D, K * D).view({T, K, D})};
}

// `packed` is the layer's current weights, or null.
at::Tensor MlpBlock(const at::Tensor& x_TH, const LayerWeights& weights,
                    const PackedLayer* packed) {
  const bool has_bias = weights.gate_proj.bias.defined() || weights.up_proj.bias.defined() ||
                        weights.down_proj.bias.defined();
  if (has_bias) {
    return Project(SwiGlu(Project(x_TH, weights.gate_proj), Project(x_TH, weights.up_proj)),
                   weights.down_proj);
  }
  GatedMlpWeights mlp = {weights.gate_proj.weight, weights.up_proj.weight,
                         weights.down_proj.weight};
  mlp.gate_adapter = weights.gate_proj.adapter;
  mlp.up_adapter = weights.up_proj.adapter;
  mlp.down_adapter = weights.down_proj.adapter;
  if (packed != nullptr) {
    mlp.packed_gate_up = &packed->gate_up;
    mlp.packed_down = &packed->down;
  }
  return GatedMlp(x_TH, mlp);
}

at::Tensor PackedSwiGlu(const at::Tensor& x_TH, const PackedWeight& gate_up,
                        const PackedWeight& down, at::ScalarType out, LayerBuffers* buffers) {
  const int64_t T = x_TH.size(0), I = down.num_inputs();
  const at::Tensor& gate_up_T2I = buffers->Get(&LayerBuffers::gate_up, {T, 2 * I}, x_TH);
  gate_up.MultiplyInto(x_TH, gate_up_T2I);
  const at::Tensor& activated_TI = buffers->Get(&LayerBuffers::activated, {T, I}, x_TH);
  SwiGluFused(gate_up_T2I, activated_TI);
  return down.Multiply(activated_TI, out);
}

at::Tensor PackedMoe(const at::Tensor& x_TH, const PackedLayer& layer, const MoeConfig& config) {
  const Routing routing = Route(layer.router.Multiply(x_TH, x_TH.scalar_type()), config);
  return ExpertsInTurn(x_TH, routing, static_cast<int64_t>(layer.experts.size()),
                       [&](int64_t e, const at::Tensor& x_nH) {
                         const PackedExpert& expert = layer.experts[static_cast<size_t>(e)];
                         // Experts rarely have as many rows as the one before.
                         LayerBuffers buffers;
                         return PackedSwiGlu(x_nH, expert.gate_up, expert.down, x_nH.scalar_type(),
                                             &buffers);
                       });
}

}  // namespace

TransformerDecoder::TransformerDecoder(const ModelConfig& config, at::Device device,
                                       at::ScalarType dtype, int64_t vocab_size, Collectives* group)
    : Decoder(config, device, dtype),
      vocab_size_(vocab_size),
      group_(group),
      rope_(config.rope, config.head_dim, device, dtype) {
  ListSlots();
}

void TransformerDecoder::ListSlots() {
  const auto architecture = FindArchitecture(config().architecture);
  TAOPD_CHECK(architecture.ok());
  slots_ = ListWeights(config(), (*architecture)->names, &weights_);
}

void TransformerDecoder::FinishWeights(bool requires_grad) {
  for (LayerWeights& layer : weights_.layers) {
    if (layer.moe.router_EH.defined() && HasGroupedProducts(layer.moe.router_EH, config().moe)) {
      StackExperts(&layer.moe);
    }
  }
  int64_t num_bytes = 0;
  for (const WeightSlot& slot : slots_) {
    slot.tensor->set_requires_grad(requires_grad && !lora_);
    num_bytes += static_cast<int64_t>(slot.tensor->nbytes());
  }
  for (auto& [name, parameter] : TrainedParameters()) parameter.set_requires_grad(requires_grad);
  few_weights_ = num_bytes <= kFewWeightsBytes;
  if (config().tie_word_embeddings) weights_.lm_head_VH = weights_.embed_tokens_VH;
}

std::vector<NamedParameter> TransformerDecoder::Parameters() const {
  std::vector<NamedParameter> parameters;
  for (const WeightSlot& slot : slots_) parameters.emplace_back(slot.name, *slot.tensor);
  return parameters;
}

std::vector<NamedParameter> TransformerDecoder::TrainedParameters() const {
  return lora_ ? LoraParameters(slots_, *lora_) : Parameters();
}

// The norm before the layer after the last one is the final norm.
const at::Tensor& TransformerDecoder::NormBefore(size_t layer) const {
  return layer < weights_.layers.size() ? weights_.layers[layer].input_norm_H
                                        : weights_.final_norm_H;
}

at::Tensor TransformerDecoder::Embed(const at::Tensor& ids_T) const {
  if (group_ == nullptr) {
    // As in transformers, reading the padding token's row of the embedding gives it no gradient.
    return Embedding(weights_.embed_tokens_VH, ids_T, config().pad_token_id.value_or(-1));
  }
  // The row of every id is in one process; the others add zeros.
  const at::Tensor own_T = ids_T - group_->place().FirstId(vocab_size_);
  const at::Tensor is_foreign_T = own_T.lt(0).logical_or(own_T.ge(config().vocab_size));
  at::Tensor hidden_TH =
      at::embedding(weights_.embed_tokens_VH, own_T.masked_fill(is_foreign_T, 0));
  hidden_TH.masked_fill_(is_foreign_T.unsqueeze(1), 0);
  group_->AllReduceSum(hidden_TH);
  return hidden_TH;
}

at::Tensor TransformerDecoder::SumOverGroup(at::Tensor partial) const {
  if (group_ == nullptr) return partial;
  partial = partial.contiguous();
  group_->AllReduceSum(partial);
  return partial.to(dtype());
}

// The output of each block is added to the residual stream in one step with the norm of the next
// block.
template <typename AttentionBlock, typename MlpBlock>
SumAndNorm TransformerDecoder::RunLayer(size_t i, const SumAndNorm& x,
                                        const AttentionBlock& attention,
                                        const MlpBlock& mlp) const {
  const double eps = config().rms_norm_eps;
  const SumAndNorm middle = AddRmsNorm(x.sum_NH, attention(i, x.normed_NH),
                                       weights_.layers[i].post_attention_norm_H, eps);
  return AddRmsNorm(middle.sum_NH, mlp(i, middle.normed_NH), NormBefore(i + 1), eps);
}

template <typename AttentionBlock, typename MlpBlock>
at::Tensor TransformerDecoder::RunLayers(const at::Tensor& ids_T, const AttentionBlock& attention,
                                         const MlpBlock& mlp) const {
  SumAndNorm x = WithFirstNorm(Embed(ids_T));
  for (size_t i = 0; i < weights_.layers.size(); ++i) x = RunLayer(i, x, attention, mlp);
  return x.normed_NH;
}

at::Tensor TransformerDecoder::MlpOfLayer(size_t i, const at::Tensor& x_TH,
                                          const PackedLayer* packed) const {
  const LayerWeights& layer = weights_.layers[i];
  return layer.moe.router_EH.defined() ? MoeBlock(x_TH, layer.moe, config().moe)
                                       : MlpBlock(x_TH, layer, packed);
}

bool TransformerDecoder::SharesPrefixes() const { return HasCpuProducts(device(), dtype()); }

// The data that the layers of one Forward share. The parts that the backward pass computes again
// keep it alive.
class TransformerDecoder::ForwardPass : public std::enable_shared_from_this<ForwardPass> {
 public:
  ForwardPass(TransformerDecoder* decoder, const PackedBatch& batch)
      : decoder_(*decoder),
        batch_(batch),
        rotation_(decoder->rope_.Gather(plan_.positions_T, plan_.num_positions)),
        packed_(decoder->HasPackedWeights() ? decoder->UpToDateWeights() : nullptr) {}

  // Runs layer i. The backward pass computes again the part of it that `recompute` names.
  SumAndNorm RunLayer(size_t i, const SumAndNorm& x, Recompute recompute) const {
    if (recompute == Recompute::kFull) {
      const auto run = [self = shared_from_this(), i](const SumAndNorm& inputs) {
        return self->RunLayer(i, inputs, Recompute::kNone);
      };
      const auto norm = [&decoder = decoder_, i](const at::Tensor& sum_TH) {
        const at::NoGradGuard no_grad;
        return RmsNorm(sum_TH, decoder.NormBefore(i), decoder.config().rms_norm_eps);
      };
      return Recomputed({run, norm}, x);
    }
    const auto attention = [&](size_t layer, const at::Tensor& x_TH) {
      if (recompute == Recompute::kNone) return AttentionOfLayer(layer, x_TH);
      const auto run = [self = shared_from_this(), layer](const at::Tensor& input_TH) {
        return self->AttentionOfLayer(layer, input_TH);
      };
      return Recomputed(run, x_TH);
    };
    const auto mlp = [&](size_t layer, const at::Tensor& x_TH) {
      return decoder_.MlpOfLayer(layer, x_TH, PackedOf(layer));
    };
    return decoder_.RunLayer(i, x, attention, mlp);
  }

 private:
  at::Tensor AttentionOfLayer(size_t i, const at::Tensor& x_TH) const {
    const PackedLayer* const packed = PackedOf(i);
    return Project(AttentionOfHeads(i, x_TH, packed), decoder_.weights_.layers[i].o_proj,
                   packed != nullptr ? &packed->o : nullptr);
  }
  // Returns [T, N * D], before the projection of the output.
  at::Tensor AttentionOfHeads(size_t i, const at::Tensor& x_TH, const PackedLayer* packed) const {
    const ModelConfig& config = decoder_.config();
    const LayerWeights& weights = decoder_.weights_.layers[i];
    const int64_t sliding_window = config.SlidingWindow(static_cast<int64_t>(i));
    if (!HasCpuProducts(x_TH)) {
      TAOPD_CHECK(batch_.parents.empty());
      const Heads heads = ProjectHeads(x_TH, weights, config);
      // The weights of the norms are undefined if the model has none.
      const auto ready = [&](const at::Tensor& x_TAD, const at::Tensor& norm_D) {
        return NormRotateHeads(x_TAD, norm_D, config.rms_norm_eps, rotation_.cos_T1D,
                               rotation_.sin_T1D);
      };
      return Attention(ready(heads.q_TND, weights.q_norm_D), ready(heads.k_TKD, weights.k_norm_D),
                       heads.v_TKD, sliding_window, plan_);
    }
    std::vector<LinearPart> parts;
    for (const Projection* projection : {&weights.q_proj, &weights.k_proj, &weights.v_proj}) {
      parts.push_back({projection->weight, projection->bias, projection->adapter});
    }
    SelfAttentionOptions options;
    options.num_heads = config.num_attention_heads;
    options.num_kv_heads = config.num_key_value_heads;
    options.eps = config.rms_norm_eps;
    options.sliding_window = sliding_window;
    options.cu_seqlens = batch_.cu_seqlens;
    options.parents = batch_.parents;
    return SelfAttention(FusedLinear(x_TH, parts, packed != nullptr ? &packed->qkv : nullptr),
                         weights.q_norm_D, weights.k_norm_D, rotation_.cos_T1D, rotation_.sin_T1D,
                         options);
  }
  const PackedLayer* PackedOf(size_t i) const { return packed_ ? &packed_->layer(i) : nullptr; }

  const TransformerDecoder& decoder_;
  const PackedBatch batch_;
  const AttentionPlan plan_ = MakeAttentionPlan(batch_, decoder_.device());
  const Rotation rotation_;
  // The copy of the weights that generation uses, or null if there is none.
  const std::shared_ptr<PackedWeights> packed_;
};

at::Tensor TransformerDecoder::Forward(const PackedBatch& batch, const ForwardOptions& options) {
  if (batch.token_ids_T.size(0) == 0) {
    return at::empty({0, config().hidden_size}, weights_.final_norm_H.options());
  }
  const auto marked = [&](const SumAndNorm& x, size_t layer) {
    const auto& report = options.on_layer_backward;
    return report ? Marked(x, [report, layer] { report(static_cast<int64_t>(layer)); }) : x;
  };
  const auto pass = std::make_shared<const ForwardPass>(this, batch);
  SumAndNorm x = marked({Embed(batch.token_ids_T), at::Tensor()}, 0);
  x = WithFirstNorm(x.sum_NH);
  for (size_t i = 0; i < weights_.layers.size(); ++i) {
    // The norm after layer i belongs to the next layer.
    x = marked(x, i + 1);
    x = pass->RunLayer(i, x, options.recompute);
  }
  return x.normed_NH;
}

at::Tensor TransformerDecoder::Infer(const PagedBatch& batch, KvPages* pages) {
  TAOPD_CHECK(!at::GradMode::is_enabled());
  if (batch.token_ids_T.size(0) == 0) {
    return at::empty({0, config().hidden_size}, weights_.final_norm_H.options());
  }
  const std::shared_ptr<PackedWeights> packed = UpToDateWeights();
  if (packed == nullptr) return InferPlain(batch, pages);
  // The processes of a group add up their sums in one order, which threads would not keep. A batch
  // with inputs lists no sequences between which it could be cut.
  const bool may_be_cut = few_weights_ && group_ == nullptr && batch.inputs == nullptr;
  if (!may_be_cut) return InferPacked(batch, pages, *packed);
  const std::vector<PagedBatch> parts = PartsOf(batch, NumAvailableThreads());
  if (parts.size() == 1) return InferPacked(batch, pages, *packed);
  std::vector<at::Tensor> hidden(parts.size());
  ParallelLoop(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    const c10::InferenceMode inference_mode;  // of this thread
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      hidden[i] = InferPacked(parts[i], pages, *packed);
    }
  });
  return at::cat(hidden);
}

at::Tensor TransformerDecoder::InferPlain(const PagedBatch& batch, KvPages* pages) {
  const PagedAttentionLayers attention(batch, pages, config());
  const Rotation rotation = rope_.Gather(attention.positions_T(), attention.num_positions());
  return RunLayers(
      batch.token_ids_T,
      [&](size_t i, const at::Tensor& x_TH) {
        const LayerWeights& layer = weights_.layers[i];
        const Heads heads = ProjectHeads(x_TH, layer, config());
        return SumOverGroup(
            Project(attention.RotateAndRun(static_cast<int64_t>(i), heads.q_TND, heads.k_TKD,
                                           heads.v_TKD, layer.q_norm_D, layer.k_norm_D, rotation),
                    layer.o_proj));
      },
      [&](size_t i, const at::Tensor& x_TH) {
        if (batch.on_layer) batch.on_layer();
        return SumOverGroup(MlpOfLayer(i, x_TH, /*packed=*/nullptr));
      });
}

at::Tensor TransformerDecoder::InferPacked(const PagedBatch& batch, KvPages* pages,
                                           const PackedWeights& packed) {
  const PagedAttentionLayers attention(batch, pages, config());
  const Rotation rotation = rope_.Gather(attention.positions_T(), attention.num_positions());
  LayerBuffers buffers;
  return RunLayers(
      batch.token_ids_T,
      [&](size_t i, const at::Tensor& x_TH) {
        const PackedLayer& layer = packed.layer(i);
        const Heads heads =
            ProjectAndRotateHeads(x_TH, layer, weights_.layers[i], config(), rotation, &buffers);
        return SumOverGroup(layer.o.Multiply(
            attention.Run(static_cast<int64_t>(i), heads.q_TND, heads.k_TKD, heads.v_TKD),
            PartialSumType()));
      },
      [&](size_t i, const at::Tensor& x_TH) {
        if (batch.on_layer) batch.on_layer();
        const PackedLayer& layer = packed.layer(i);
        if (layer.router.defined()) return SumOverGroup(PackedMoe(x_TH, layer, config().moe));
        return SumOverGroup(
            PackedSwiGlu(x_TH, layer.gate_up, layer.down, PartialSumType(), &buffers));
      });
}

at::Tensor TransformerDecoder::Logits(const at::Tensor& hidden_NH) {
  at::Tensor logits_NV;
  if (const std::shared_ptr<PackedWeights> packed = UpToDateWeights()) {
    logits_NV = packed->lm_head().Multiply(hidden_NH, at::kFloat);
  } else {
    logits_NV =
        at::empty({hidden_NH.size(0), config().vocab_size}, hidden_NH.options().dtype(at::kFloat));
    HeadGemm(weights_.lm_head_VH).Logits(hidden_NH, logits_NV);
  }
  return group_ == nullptr ? logits_NV : GatherLogits(logits_NV, vocab_size_, group_);
}

ScoringOutput TransformerDecoder::ScoreRows(const at::Tensor& hidden_NH,
                                            const at::Tensor& sampled_ids_N,
                                            const at::Tensor& candidate_ids_NM,
                                            const ScoringOptions& options) {
  const std::shared_ptr<PackedWeights> packed = UpToDateWeights();
  const HeadMatrix head =
      packed != nullptr ? HeadMatrix(packed->lm_head()) : HeadMatrix(weights_.lm_head_VH.detach());
  if (group_ == nullptr) {
    return ScoreRowsOfHead(hidden_NH, head, sampled_ids_N, candidate_ids_NM, options);
  }
  return ScoreRowsOfShards(hidden_NH, head, vocab_size_, sampled_ids_N, candidate_ids_NM, options,
                           group_);
}

}  // namespace taopd
