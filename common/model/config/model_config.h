// The sizes and switches of a decoder-only transformer, as a Hugging Face config.json gives them.
// One struct serves every architecture; common/model/architectures sets what an architecture fixes,
// such as Qwen3's QK-norm. This folder does not depend on LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/config/rope_config.h"

namespace taopd {

// A mixture of experts instead of a layer's MLP: a router chooses experts_per_token of num_experts
// for every token. A dense model has num_experts 0.
struct MoeConfig {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;    // size of one expert
  bool normalize_gates = false;     // the chosen experts' gates sum to one (norm_topk_prob)
  std::vector<bool> sparse_layers;  // by layer; the others have a dense MLP
};

// The vocabulary of another tokenizer that a model uses from now on, such as the R1 tokenizer for a
// Llama student.
struct VocabularyChange {
  // The number of tokens of the tokenizer. If the model has at least as many rows, nothing is
  // resized: a padded vocabulary has spare rows. Otherwise the embedding and the head get new rows,
  // each the mean of the old ones. This is transformers' resize_token_embeddings without its noise
  // of 3e-5 standard deviations, which is below bfloat16's resolution.
  int64_t num_tokens = 0;
  // The tokenizer's ids, which replace the configuration's.
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
};

struct ModelConfig {
  std::string architecture;  // config.json's architectures[0], e.g. "Qwen3ForCausalLM"
  int64_t vocab_size = 0;    // rows of the embedding and of the output head
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeConfig rope;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // biases of the q, k, v projections
  bool attention_output_bias = false;  // bias of the o projection
  bool mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over each head of q and k (Qwen3)
  // A token of a sliding layer attends to itself and to the sliding_window - 1 tokens before it.
  int64_t sliding_window = 0;
  std::vector<bool> sliding_layers;  // by layer; empty: none
  MoeConfig moe;
  double initializer_range = 0.02;
  std::vector<int32_t> eos_token_ids;  // below vocab_size
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  // The dtype of the stored weights (torch_dtype or dtype); empty if config.json does not specify
  // it.
  std::string dtype = "float32";
  // The text of the file. Export writes it with the dtype adjusted, so clear it after any other
  // change.
  std::string raw_json;

  // Returns the layer's sliding window, or 0 if it attends to all previous tokens.
  int64_t SlidingWindow(int64_t layer) const;
  bool HasSlidingLayers() const;
  // Returns whether the layer's MLP is a mixture of experts.
  bool IsSparse(int64_t layer) const;
  // Returns the number of parameters. A tied head counts once.
  int64_t NumParameters() const;
  // Returns the size of one token's keys and values in all layers.
  int64_t KvBytesPerToken(int64_t bytes_per_value) const {
    return 2 * num_hidden_layers * num_key_value_heads * head_dim * bytes_per_value;
  }
};

// Parses the text of a config.json. Errors start with `source` and name the member:
//   INVALID_ARGUMENT  a size is missing or absurd, or a value is malformed
//   UNIMPLEMENTED     the architecture is unknown, or a setting that would change the results is
//                     not implemented (quantized weights, longrope, ...)
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text,
                                             const std::string& source = "config.json");
// Reads config.json of a model directory, or of the base if the directory holds an adapter
// (common/model/config/lora_config.h), and eos_token_id from its generation_config.json if there is
// one.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);
// Sets the vocabulary's size and the special tokens, in the fields and in raw_json. Returns
// INVALID_ARGUMENT for an id that is not below the new size.
absl::Status ChangeVocabulary(const VocabularyChange& change, ModelConfig* config);
// Returns the text of a config.json for a configuration that was read, or that was built in memory
// (its raw_json is empty).
std::string ModelConfigJson(const ModelConfig& config);

}  // namespace taopd
