// Makes tiny models of each architecture, with any size of vocabulary.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/status.h"
#include "tests/support/process.h"

namespace taopd::testing {

using Json = nlohmann::ordered_json;

// Returns the common part of all models, which are tiny except for the vocabulary.
inline Json BaseConfig(const std::string& architecture, const std::string& model_type,
                       int64_t vocab_size) {
  return {{"architectures", Json::array({architecture})},
          {"model_type", model_type},
          {"vocab_size", vocab_size},
          {"hidden_size", 16},
          {"intermediate_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 1000000.0},
          {"tie_word_embeddings", true},
          {"initializer_range", 0.1},
          {"torch_dtype", "float32"}};
}

inline Json Qwen25Config(int64_t vocab_size) {
  Json json = BaseConfig("Qwen2ForCausalLM", "qwen2", vocab_size);
  json.update({{"eos_token_id", 151643},
               {"bos_token_id", 151643},
               {"sliding_window", 4096},
               {"use_sliding_window", false},
               {"max_window_layers", 2}});
  return json;
}

inline Json Qwen3MoeConfig(int64_t vocab_size) {
  Json json = BaseConfig("Qwen3MoeForCausalLM", "qwen3_moe", vocab_size);
  json.update({{"eos_token_id", 151645},
               {"bos_token_id", 151643},
               {"num_experts", 8},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 16},
               {"norm_topk_prob", true},
               {"decoder_sparse_step", 1},
               {"mlp_only_layers", Json::array()}});
  return json;
}

inline Json Llama31Config(int64_t vocab_size) {
  Json json = BaseConfig("LlamaForCausalLM", "llama", vocab_size);
  json.update({{"eos_token_id", Json::array({128001, 128008, 128009})},
               {"bos_token_id", 128000},
               {"rope_scaling",
                {{"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 64},
                 {"rope_type", "llama3"}}}});
  return json;
}

inline Json Qwen3Config(int64_t vocab_size) {
  Json json = BaseConfig("Qwen3ForCausalLM", "qwen3", vocab_size);
  json.update({{"eos_token_id", 151645}, {"bos_token_id", 151643}});
  return json;
}

// Makes a model of nearly random weights: one step of supervised training saves them in the
// directory `dir`, with the tokenizer. Returns the model's directory.
inline std::string MakeRandomModel(const std::string& dir, const Json& config,
                                   const std::string& tokenizer, int seed = 0) {
  const std::string config_path = dir + "/config.json", data_path = dir + "/pairs.jsonl",
                    sft_path = dir + "/sft.yaml", run_dir = dir + "/run";
  std::filesystem::create_directories(dir);
  WriteFile(config_path, config.dump());
  WriteFile(data_path, "{\"prompt_ids\":[5],\"response_ids\":[0]}\n");
  WriteFile(sft_path, Concat("run: {name: random, dir: ", run_dir, ", seed: ", seed, "}\n",
                             "model: {config: ", config_path, ", tokenizer: ", tokenizer, "}\n",
                             "data: {train: [", data_path, "]}\n",
                             "trainer: {total_steps: 1, batch_size: 1, num_threads: 1}\n"));
  std::string output;
  EXPECT_EQ(RunProgram({BinaryPath("taopd-trainer"), "sft", "--config", sft_path}, dir + "/sft.log",
                       &output, absl::Seconds(300)),
            0)
      << output;
  return run_dir + "/model";
}

}  // namespace taopd::testing
