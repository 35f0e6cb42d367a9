#include "common/model/weights/packed_weights.h"

#include "common/base/check.h"

namespace taopd {
namespace {

// Packs projections into one, and reports that it has done so.
class Packer {
 public:
  explicit Packer(const std::function<void(const at::Tensor&)>& done) : done_(done) {}

  PackedWeight Fuse(std::vector<at::Tensor> matrices, std::vector<at::Tensor> biases = {},
                    std::vector<LowRankAdapter> adapters = {}) const {
    PackedWeight packed(matrices, std::move(biases), std::move(adapters));
    for (const at::Tensor& matrix : matrices) done_(matrix);
    return packed;
  }
  PackedWeight FuseProjections(const std::vector<const Projection*>& projections) const {
    std::vector<at::Tensor> matrices, biases;
    std::vector<LowRankAdapter> adapters;
    for (const Projection* projection : projections) {
      matrices.push_back(projection->weight);
      biases.push_back(projection->bias);
      adapters.push_back(projection->adapter);
    }
    return Fuse(std::move(matrices), std::move(biases), std::move(adapters));
  }

 private:
  const std::function<void(const at::Tensor&)>& done_;
};

PackedLayer PackLayer(const LayerWeights& layer, const Packer& packer) {
  using Matrices = std::vector<at::Tensor>;
  PackedLayer packed;
  packed.qkv = packer.FuseProjections({&layer.q_proj, &layer.k_proj, &layer.v_proj});
  packed.o = packer.FuseProjections({&layer.o_proj});
  if (!layer.moe.router_EH.defined()) {
    packed.gate_up = packer.FuseProjections({&layer.gate_proj, &layer.up_proj});
    packed.down = packer.FuseProjections({&layer.down_proj});
    return packed;
  }
  packed.router = packer.Fuse(Matrices{layer.moe.router_EH});
  for (const ExpertWeights& expert : layer.moe.experts) {
    packed.experts.push_back({packer.Fuse(Matrices{expert.gate_IH, expert.up_IH}),
                              packer.Fuse(Matrices{expert.down_HI})});
  }
  return packed;
}

}  // namespace

PackedWeights::PackedWeights(const ModelWeights& weights,
                             std::function<void(const at::Tensor& matrix)> done)
    : done_(std::move(done)), lm_head_VH_(weights.lm_head_VH) {
  layers_.reserve(weights.layers.size());
  for (const LayerWeights& layer : weights.layers) {
    layers_.push_back(PackLayer(layer, Packer(done_)));
  }
}

const PackedWeight& PackedWeights::lm_head() {
  if (!lm_head_.defined()) lm_head_ = Packer(done_).Fuse({lm_head_VH_});
  return lm_head_;
}

template <typename Self, typename Function>
void PackedWeights::ForEach(Self* self, const Function& function) {
  for (auto& layer : self->layers_) {
    for (auto* weight : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down, &layer.router}) {
      if (weight->defined()) function(weight);
    }
    for (auto& expert : layer.experts) {
      function(&expert.gate_up);
      function(&expert.down);
    }
  }
  if (self->lm_head_.defined()) function(&self->lm_head_);
}

void PackedWeights::Refresh() {
  ForEach(this, [](PackedWeight* weight) { weight->Refresh(); });
}

void PackedWeights::Replace(const std::map<const void*, at::Tensor>& newer) {
  ForEach(this, [&](PackedWeight* weight) { weight->Replace(newer); });
  const auto head = newer.find(lm_head_VH_.const_data_ptr());
  if (head != newer.end()) lm_head_VH_ = head->second;
  for (const auto& [address, tensor] : newer) done_(tensor);
}

int64_t PackedWeights::unplanned_bytes() const {
  int64_t bytes = 0;
  ForEach(this, [&](const PackedWeight* weight) { bytes += weight->unplanned_bytes(); });
  return bytes;
}

void PackedWeights::DropSources() {
  TAOPD_CHECK(lm_head_.defined());
  ForEach(this, [](PackedWeight* weight) { weight->DropSources(); });
  lm_head_VH_ = at::Tensor();
}

uint64_t WeightVersion(const std::vector<WeightSlot>& slots) {
  uint64_t version = 0;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.is_inference()) version += static_cast<uint64_t>(tensor._version());
  };
  for (const WeightSlot& slot : slots) {
    add(*slot.tensor);
    if (slot.adapter == nullptr || !slot.adapter->defined()) continue;
    add(slot.adapter->a_RK);
    add(slot.adapter->b_NR);
  }
  return version;
}

}  // namespace taopd
