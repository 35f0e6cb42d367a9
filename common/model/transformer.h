// The Decoder of every architecture here: embedding, a stack of attention and MLP blocks, final
// norm. What differs between architectures is in the configuration and in which weights are there.
#pragma once

#include <memory>

#include "common/model/decoder.h"
#include "common/model/layers/rope.h"
#include "common/model/weights/weights.h"

namespace taopd {

class TransformerDecoder final : public Decoder {
 public:
  // REQUIRES: config passed ParseModelConfig's checks. The weights are empty until SetWeights.
  TransformerDecoder(const ModelConfig& config, at::Device device, at::ScalarType dtype);

  // What a loader fills, once, before the first Forward: slots() lists the tensors to set,
  // FinishWeights ties the head and marks the leaves of autograd.
  const std::vector<WeightSlot>& slots() const { return slots_; }
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
