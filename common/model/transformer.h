// The Decoder of every supported architecture: an embedding, a stack of attention and MLP blocks,
// and a final norm. Architectures differ in the configuration and in which weights they have.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "common/model/decoder.h"
#include "common/model/layers/rope.h"
#include "common/model/parallel/collectives.h"
#include "common/model/weights/packed_weights.h"
#include "common/model/weights/weights.h"
#include "kernels/torch/layers/norms_and_swiglu.h"

namespace taopd {

class TransformerDecoder final : public Decoder {
 public:
  // The weights are undefined until a loader has set all slots() and called FinishWeights.
  // REQUIRES: `config` passed the checks of ParseModelConfig.
  TransformerDecoder(const ModelConfig& config, at::Device device, at::ScalarType dtype)
      : TransformerDecoder(config, device, dtype, config.vocab_size, /*group=*/nullptr) {}
  // A slice of a model whose whole vocabulary has vocab_size ids; `config` is SliceOf the model's
  // configuration.
  TransformerDecoder(const ModelConfig& config, at::Device device, at::ScalarType dtype,
                     int64_t vocab_size, Collectives* group);

  // The tensors that a loader sets once, before the first Forward.
  const std::vector<WeightSlot>& slots() const { return slots_; }
  // Declares that a parameter is in a mapped file; see ReleaserOf.
  void SetMapped(const at::Tensor& parameter, std::function<void()> release) {
    release_mapped_[parameter.const_data_ptr()] = std::move(release);
  }
  // Adds adapters to the modules that the options name. Returns the errors of ResolveTargetModules
  // and ReadLoraAdapters.
  absl::Status AddAdapters(const LoraOptions& options);
  // Ties the head and, if requires_grad, marks the parameters that are trained as leaves of
  // autograd.
  void FinishWeights(bool requires_grad);

  bool SharesPrefixes() const override;
  using Decoder::Forward;
  at::Tensor Forward(const PackedBatch& batch, const ForwardOptions& options) override;
  at::Tensor Infer(const PagedBatch& batch, KvPages* pages) override;
  at::Tensor Logits(const at::Tensor& hidden_NH) override;
  ScoringOutput ScoreRows(const at::Tensor& hidden_NH, const at::Tensor& sampled_ids_N,
                          const at::Tensor& candidate_ids_NM,
                          const ScoringOptions& options) override;
  int64_t PrepareInference() override;
  void KeepForInferenceOnly() override;
  void ReplaceParameters(const std::vector<NewParameter>& changed) override;
  std::function<void()> ReleaserOf(const at::Tensor& parameter) const override;
  std::vector<const void*> InferenceAddresses() const override;
  uint64_t weight_version() const override {
    return inference_only_ ? 0 : WeightVersion(slots_) + replaced_versions_;
  }
  at::Tensor lm_head() const override { return weights_.lm_head_VH; }
  std::vector<NamedParameter> Parameters() const override;
  const LoraConfig* lora() const override { return lora_ ? &*lora_ : nullptr; }
  std::vector<NamedParameter> TrainedParameters() const override;
  std::unique_ptr<Decoder> WithOwnAdapters() const override;

 private:
  class ForwardPass;
  // Lists the tensors of weights_, as its vectors are now.
  void ListSlots();
  // Runs the residual stream through all layers: attention(i, x) and mlp(i, x) are the blocks of
  // layer i.
  template <typename AttentionBlock, typename MlpBlock>
  at::Tensor RunLayers(const at::Tensor& ids_T, const AttentionBlock& attention,
                       const MlpBlock& mlp) const;
  // Runs one layer: from the residual stream before it and its norm to those after it.
  template <typename AttentionBlock, typename MlpBlock>
  SumAndNorm RunLayer(size_t i, const SumAndNorm& x, const AttentionBlock& attention,
                      const MlpBlock& mlp) const;
  at::Tensor Embed(const at::Tensor& ids_T) const;
  // Returns the input of the first layer.
  SumAndNorm WithFirstNorm(const at::Tensor& embedded_TH) const {
    return {embedded_TH, RmsNorm(embedded_TH, NormBefore(0), config().rms_norm_eps)};
  }
  const at::Tensor& NormBefore(size_t layer) const;
  // `packed` is the layer's current weights, or null.
  at::Tensor MlpOfLayer(size_t i, const at::Tensor& x_TH, const PackedLayer* packed) const;
  // The two implementations of Infer: from the parameters, and from the packed weights. Several
  // threads may run InferPacked with parts of a batch.
  at::Tensor InferPlain(const PagedBatch& batch, KvPages* pages);
  at::Tensor InferPacked(const PagedBatch& batch, KvPages* pages, const PackedWeights& packed);
  // Returns the type in which a projection that was cut by columns returns its partial sum.
  at::ScalarType PartialSumType() const { return group_ == nullptr ? dtype() : at::kFloat; }
  // Returns the sum of the partial sums of all processes; without a group, returns `partial`.
  at::Tensor SumOverGroup(at::Tensor partial) const;
  // Returns the packed weights, up to date, or null if inference uses the parameters themselves.
  std::shared_ptr<PackedWeights> UpToDateWeights();
  // Returns whether inference has packed the weights.
  bool HasPackedWeights();

  const int64_t vocab_size_ = 0;        // vocabulary of the whole model
  Collectives* const group_ = nullptr;  // null: this process has the whole model
  ModelWeights weights_;
  std::vector<WeightSlot> slots_;                                // point into weights_
  std::map<const void*, std::function<void()>> release_mapped_;  // by the tensor's address
  std::optional<LoraConfig> lora_;
  RopeTable rope_;
  std::mutex packed_mutex_;  // guards packed_ and packed_version_ while several threads run Infer
  std::shared_ptr<PackedWeights> packed_;
  uint64_t packed_version_ = 0;
  uint64_t replaced_versions_ = 0;  // what the counters of replaced parameters no longer count
  bool inference_only_ = false;
  // Whether threads divide the rows of a batch, and not each product, among themselves. With
  // weights this small, waiting for each other between products takes as long as the products.
  bool few_weights_ = false;
};

}  // namespace taopd
