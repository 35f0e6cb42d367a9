#include "common/model/weights/packed_weights.h"

namespace taopd {
namespace {

PackedWeight Fuse(const std::vector<const Projection*>& projections) {
  std::vector<at::Tensor> weights, biases;
  for (const Projection* projection : projections) {
    weights.push_back(projection->weight);
    biases.push_back(projection->bias);
  }
  return PackedWeight(std::move(weights), std::move(biases));
}

PackedLayer PackLayer(const LayerWeights& layer) {
  PackedLayer packed;
  packed.qkv = Fuse({&layer.q_proj, &layer.k_proj, &layer.v_proj});
  packed.o = Fuse({&layer.o_proj});
  if (!layer.moe.router_EH.defined()) {
    packed.gate_up = Fuse({&layer.gate_proj, &layer.up_proj});
    packed.down = Fuse({&layer.down_proj});
    return packed;
  }
  packed.router = PackedWeight(std::vector<at::Tensor>{layer.moe.router_EH});
  for (const ExpertWeights& expert : layer.moe.experts) {
    packed.experts.push_back(
        {PackedWeight(std::vector<at::Tensor>{expert.gate_IH, expert.up_IH}),
         PackedWeight(std::vector<at::Tensor>{expert.down_HI})});
  }
  return packed;
}

}  // namespace

PackedWeights::PackedWeights(const ModelWeights& weights) : lm_head_VH_(weights.lm_head_VH) {
  layers_.reserve(weights.layers.size());
  for (const LayerWeights& layer : weights.layers) layers_.push_back(PackLayer(layer));
}

const PackedWeight& PackedWeights::lm_head() {
  if (!lm_head_.defined()) lm_head_ = PackedWeight(std::vector<at::Tensor>{lm_head_VH_});
  return lm_head_;
}

template <typename Function>
void PackedWeights::ForEachOfLayers(const Function& function) {
  for (PackedLayer& layer : layers_) {
    for (PackedWeight* weight :
         {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.router}) {
      if (weight->defined()) function(weight);
    }
    for (PackedExpert& expert : layer.experts) {
      function(&expert.gate_up);
      function(&expert.down);
    }
  }
}

void PackedWeights::Refresh() {
  ForEachOfLayers([](PackedWeight* weight) { weight->Refresh(); });
  if (lm_head_.defined()) lm_head_.Refresh();
}

void PackedWeights::DropSources() {
  ForEachOfLayers([](PackedWeight* weight) { weight->DropSources(); });
}

uint64_t WeightVersion(const std::vector<WeightSlot>& slots) {
  uint64_t version = 0;
  for (const WeightSlot& slot : slots) {
    if (!slot.tensor->is_inference()) version += static_cast<uint64_t>(slot.tensor->_version());
  }
  return version;
}

}  // namespace taopd
