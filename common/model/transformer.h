// The Decoder of every supported architecture: an embedding, a stack of attention and MLP blocks,
// and a final norm. Architectures differ in the configuration and in which weights they have.
#pragma once

#include <memory>

#include "common/model/decoder.h"
#include "common/model/layers/rope.h"
#include "common/model/weights/weights.h"

namespace taopd {

class TransformerDecoder final : public Decoder {
 public:
  // The weights are undefined until a loader has set all slots() and called FinishWeights.
  // REQUIRES: `config` passed the checks of ParseModelConfig.
  TransformerDecoder(const ModelConfig& config, at::Device device, at::ScalarType dtype);

  // The tensors that a loader sets, once, before the first Forward.
  const std::vector<WeightSlot>& slots() const { return slots_; }
  // Ties the head and, if requires_grad, marks the parameters as leaves of autograd.
  void FinishWeights(bool requires_grad);

  at::Tensor Forward(const PackedBatch& batch, KvCache* cache) override;
  at::Tensor lm_head() const override { return weights_.lm_head_VH; }
  std::vector<NamedParameter> Parameters() const override;

 private:
  ModelWeights weights_;
  std::vector<WeightSlot> slots_;  // into weights_
  RopeTable rope_;
};

}  // namespace taopd
