// The sizes and switches of a decoder-only transformer, as a Hugging Face config.json gives them.
// One struct for every architecture; what an architecture fixes (Qwen3's QK-norm) its own file
// sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/config/rope_config.h"

namespace taopd {

// Mixture of experts in the place of a layer's MLP: a router picks experts_per_token of num_experts
// for every token. num_experts 0: a dense model.
struct MoeConfig {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t intermediate_size = 0;    // of one expert
  bool normalize_gates = false;     // gates of the chosen experts sum to one (norm_topk_prob)
  std::vector<bool> sparse_layers;  // by layer; the others have a dense MLP
};

// For a model that goes on with another tokenizer (a Llama student with the R1 tokenizer).
struct VocabularyChange {
  // Tokens of the tokenizer. Fewer than the model has rows: nothing is resized, as a padded
  // vocabulary has rows to spare. More: the embedding and the head get new rows, each the mean of
  // the old ones, which is transformers' resize_token_embeddings less its noise of 3e-5 standard
  // deviations (below bfloat16's resolution).
  int64_t num_tokens = 0;
  // Those of the tokenizer, in place of the configuration's.
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
  // A token of a sliding layer sees itself and sliding_window - 1 tokens before it.
  int64_t sliding_window = 0;
  std::vector<bool> sliding_layers;  // by layer; empty: none
  MoeConfig moe;
  double initializer_range = 0.02;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  // Of the stored weights, as config.json says (torch_dtype or dtype); empty where it does not say.
  std::string dtype = "float32";
  std::string raw_json;  // the file as read; export writes it with dtype adjusted: clear it after
                         // other changes

  int64_t SlidingWindow(int64_t layer) const;  // 0: the layer attends to all tokens before
  bool HasSlidingLayers() const;
  bool IsSparse(int64_t layer) const;  // the layer's MLP is a mixture of experts
  int64_t NumParameters() const;       // counts a tied head once
  int64_t KvBytesPerToken(int64_t bytes_per_value) const;
};

// Reads config.json text. Refused by name: unknown architectures, missing or absurd sizes, and
// settings that would change the numbers and are not implemented (quantised weights, longrope,
// ...).
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text);
// Of a model directory; also reads generation_config.json's eos_token_id when there is one.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);
// The vocabulary's size and the special tokens, in the fields and in raw_json. INVALID_ARGUMENT for
// an id that is not below the new size.
absl::Status ChangeVocabulary(const VocabularyChange& change, ModelConfig* config);
// config.json text for a configuration that was built in memory (raw_json empty) or read.
std::string ModelConfigJson(const ModelConfig& config);

}  // namespace taopd
