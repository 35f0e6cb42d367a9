// The sizes of published models, as their config.json gives them, and plans for them.
#pragma once

#include <string>
#include <vector>

#include "common/memory/engine_plan.h"
#include "common/model/config/model_config.h"

namespace taopd::testing {

inline constexpr char kQwen3_0_6b[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
  "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000,
  "max_position_embeddings": 40960, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";
inline constexpr char kQwen3_1_7b[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2048,
  "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000,
  "max_position_embeddings": 40960, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";
inline constexpr char kQwen3_8b[] = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
  "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000,
  "max_position_embeddings": 40960, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
inline constexpr char kQwen3_30b[] = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
  "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "num_hidden_layers": 48, "num_attention_heads": 32,
  "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000,
  "max_position_embeddings": 40960, "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
inline constexpr char kLlama31_8b[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
  "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

inline ModelConfig PublicConfig(const char* json) { return ParseModelConfig(json).value(); }

inline MemoryBudget Budget(const std::string& device, int64_t limit_bytes) {
  MemoryBudget budget;
  budget.device = device;
  budget.limit_bytes = limit_bytes;
  budget.source = "a test";
  return budget;
}

// Returns the plan's input for a model in bfloat16 with the engine's defaults.
inline EnginePlanInput Input(const char* json, const MemoryBudget& budget) {
  EnginePlanInput input;
  input.config = PublicConfig(json);
  input.dtype = DataType::kBFloat16;
  input.stored_dtype = DataType::kBFloat16;
  input.budget = budget;
  input.max_num_seqs = 256;
  input.max_num_batched_tokens = 8192;
  input.head_workspace_bytes = int64_t{256} << 20;
  return input;
}

// Returns the first line with this name, or nullptr.
inline const MemoryLine* LineOf(const std::vector<MemoryLine>& lines, const std::string& name) {
  for (const MemoryLine& line : lines) {
    if (NameOf(line.item) == name) return &line;
  }
  return nullptr;
}

// Returns the bytes of the first line with this name, or -1.
inline int64_t BytesOfLine(const std::vector<MemoryLine>& lines, const std::string& name) {
  const MemoryLine* const line = LineOf(lines, name);
  return line != nullptr ? line->bytes : -1;
}

}  // namespace taopd::testing
