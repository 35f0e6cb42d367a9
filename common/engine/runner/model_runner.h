// Carries out the parts of a step on the model: packs sequences, runs the decoder, scores and
// samples. Owns the KV cache.
//
// Threads: only the engine's thread uses it. Errors: LibTorch's exceptions pass through, and the
// caller then fails all sequences of the call. A sequence whose own logits are not finite gets an
// error in Sequence::status, and the others go on.
//
// Shapes: P tokens of one prompt, U computed rows, H hidden size.
#pragma once

#include <memory>
#include <vector>

#include "common/engine/sampling/sampler.h"
#include "common/engine/scheduling/sequence.h"
#include "common/model/decoder.h"

namespace taopd {

struct ModelRunnerOptions {
  // Size of the KV cache.
  int64_t num_slots = 0;
  int64_t tokens_per_slot = 0;
  int64_t head_workspace_bytes = 0;  // as in EngineOptions
};

class ModelRunner {
 public:
  ModelRunner(std::shared_ptr<Decoder> decoder, const ModelRunnerOptions& options);

  // Runs the prompts without the KV cache, fills `score` and finishes the sequences.
  void Score(const std::vector<Sequence*>& sequences);
  // Runs the prompts into the KV cache, fills `score` where a sequence asks for it, and appends the
  // first token to each sequence.
  void Prefill(const std::vector<Sequence*>& sequences);
  // Appends one token to each sequence.
  void Decode(const std::vector<Sequence*>& sequences);

  // Zeroes the slots of sequences that failed. Attention reads a slot beyond its sequence's end
  // under a mask, and a mask hides every number except NaN, so a NaN must not stay in the cache.
  void ClearSlots(const std::vector<Sequence*>& sequences);

 private:
  at::Tensor TokenTensor(std::vector<int64_t>* token_ids) const;
  KvCache& cache();
  void ScoreOne(const at::Tensor& hidden_PH, Sequence* sequence);
  void SampleNext(const at::Tensor& hidden_UH, const std::vector<Sequence*>& sequences,
                  const std::vector<int64_t>& row_of_sequence);

  const std::shared_ptr<Decoder> decoder_;
  const ModelRunnerOptions options_;
  // Allocated at the first generation, so that an engine that only scores does not pay for it.
  std::unique_ptr<KvCache> cache_;
  std::vector<int64_t> token_ids_;  // scratch memory of Decode
};

}  // namespace taopd
