// The sizes and switches of a decoder-only transformer, as a Hugging Face config.json gives them.
// One struct for every architecture; what an architecture fixes (Qwen3's QK-norm) its own file sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"

namespace taopd {

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
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // biases of the q, k, v projections (and o, as in transformers)
  bool mlp_bias = false;
  bool qk_norm = false;         // RMSNorm over each head of q and k (Qwen3)
  double initializer_range = 0.02;
  std::vector<int32_t> eos_token_ids;
  std::optional<int32_t> bos_token_id;
  std::optional<int32_t> pad_token_id;
  // Of the stored weights, as config.json says (torch_dtype or dtype); empty where it does not say.
  std::string dtype = "float32";
  std::string raw_json;  // the file as read; export writes it with dtype adjusted: clear it after changes

  int64_t NumParameters() const;      // counts a tied head once
  int64_t KvBytesPerToken(int64_t bytes_per_value) const;
};

// Reads config.json text. Refused by name: unknown architectures, missing or absurd sizes, and
// settings that would change the numbers and are not implemented (rope scaling, sliding window, ...).
absl::StatusOr<ModelConfig> ParseModelConfig(const std::string& json_text);
// Of a model directory; also reads generation_config.json's eos_token_id when there is one.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model_dir);
// config.json text for a configuration that was built in memory (raw_json empty) or read.
std::string ModelConfigJson(const ModelConfig& config);

}  // namespace taopd
