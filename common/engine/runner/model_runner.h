// Carries out the parts of a step on the model: packs sequences, runs the decoder, scores and
// samples. The engine's thread alone uses it. LibTorch's exceptions pass through; the sequences of
// the call are then to be failed.
//
// Shapes: T tokens, B sequences, H hidden size, V vocabulary.
#pragma once

#include <memory>
#include <vector>

#include "common/engine/runner/sampler.h"
#include "common/engine/scheduling/sequence.h"
#include "common/model/decoder.h"

namespace taopd {

struct ModelRunnerOptions {
  int64_t num_slots = 0;  // of the KV cache
  int64_t tokens_per_slot = 0;
  int64_t head_workspace_bytes = 0;
};

class ModelRunner {
 public:
  ModelRunner(std::shared_ptr<Decoder> decoder, const ModelRunnerOptions& options);

  // Prefill without the KV cache; fills `score` and finishes the sequences.
  void Score(const std::vector<Sequence*>& sequences);
  // Prefill into the KV cache; fills `score` where asked for and appends the first token.
  void Prefill(const std::vector<Sequence*>& sequences);
  // Appends one token to each.
  void Decode(const std::vector<Sequence*>& sequences);

  // Zeroes the slots of sequences that failed. Attention reads a slot beyond its sequence's end
  // under a mask, which hides any number but NaN: what broken weights left must not outlive them.
  void ClearSlots(const std::vector<Sequence*>& sequences);

 private:
  at::Tensor TokenTensor(std::vector<int64_t>* token_ids) const;
  KvCache& cache();
  void ScoreOne(const at::Tensor& hidden_PH, Sequence* sequence);
  void SampleNext(const at::Tensor& hidden_UH, const std::vector<Sequence*>& sequences,
                  const std::vector<int64_t>& row_of_sequence);

  const std::shared_ptr<Decoder> decoder_;
  const ModelRunnerOptions options_;
  std::unique_ptr<KvCache>
      cache_;  // made at the first generation: scoring alone does not pay for it
  std::vector<int64_t> token_ids_;  // kept between decode steps
};

}  // namespace taopd
