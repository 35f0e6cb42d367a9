// Random models that are small enough for tests. Their logits are spread widely enough that a
// greedy choice does not depend on the last bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/engine/torch_engine.h"
#include "common/model/weights/model_files.h"

namespace taopd::testing {

inline ModelConfig SmallConfig(const std::string& architecture = "Qwen3ForCausalLM") {
  return {.architecture = architecture,
          .vocab_size = 61,
          .hidden_size = 32,
          .intermediate_size = 48,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 8,
          .max_position_embeddings = 64,
          .qk_norm = architecture == "Qwen3ForCausalLM",
          .initializer_range = 0.3};
}

inline std::shared_ptr<Decoder> MakeTiny(const ModelConfig& config = SmallConfig(),
                                         bool requires_grad = false,
                                         const std::string& dtype = "float32",
                                         const std::string& device = "cpu") {
  const DecoderOptions options = {.dtype = dtype, .device = device, .requires_grad = requires_grad};
  return MakeDecoder(config, options, RandomStream(5, "tiny model")).value();
}

inline std::unique_ptr<InferenceEngine> MakeEngine(std::shared_ptr<Decoder> decoder,
                                                   const EngineOptions& options = EngineOptions()) {
  return MakeTorchEngine(std::move(decoder), options).value();
}

inline std::vector<int32_t> RandomIds(int64_t length, uint64_t seed, int64_t vocab_size = 61) {
  RandomStream random(seed, "ids");
  std::vector<int32_t> ids(length);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.NextBelow(vocab_size));
  return ids;
}

// The oracle: returns the float64 logits of all positions from one forward pass over the whole
// sequence, [P, V].
inline at::Tensor LogitsOf(Decoder* decoder, const std::vector<int32_t>& ids) {
  const at::NoGradGuard no_grad;
  const at::Tensor hidden = decoder->Forward(PackedBatch::FromSequences({ids}, decoder->device()));
  return at::mm(hidden.to(at::kDouble), decoder->lm_head().to(at::kDouble).t());
}

}  // namespace taopd::testing
