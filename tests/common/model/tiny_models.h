// Tiny models of every architecture, and helpers of the tests that use them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/io/safetensors/safetensors.h"
#include "common/model/weights/model_files.h"
#include "common/model/weights/weights.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {

// Tiny operations gain nothing from a second thread, and waiting for a thread that a busy machine
// does not schedule takes milliseconds each time.
inline void UseOneThread() { at::set_num_threads(1); }

inline ModelConfig TinyConfig(const std::string& architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocab_size = 31;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 512;
  config.initializer_range = 0.2;
  config.qk_norm = architecture.starts_with("Qwen3");
  config.tie_word_embeddings = config.qk_norm;
  config.attention_bias = !config.qk_norm;
  config.attention_output_bias = architecture == "LlamaForCausalLM";
  if (architecture == "Qwen2ForCausalLM") {  // a window and a scaling within the tests' lengths
    config.sliding_window = 20;
    config.sliding_layers = {false, true};
    config.rope.type = RopeType::kYarn;
    config.rope.factor = 4.0;
    config.rope.original_max_position_embeddings = 32;
  }
  if (architecture == "Qwen3MoeForCausalLM") {
    config.moe = {.num_experts = 6,
                  .experts_per_token = 2,
                  .intermediate_size = 16,
                  .normalize_gates = true,
                  .sparse_layers = {false, true}};
  }
  return config;
}

// A tiny model of this architecture in this type, for tests that run with several.
struct TinyKind {
  const char *architecture, *dtype;
};
// Returns a name for such a test: "Qwen3ForCausalLM_bfloat16".
inline std::string NameOfKind(const ::testing::TestParamInfo<TinyKind>& info) {
  return Concat(info.param.architecture, "_", info.param.dtype);
}

inline std::unique_ptr<Decoder> TinyDecoder(const std::string& architecture,
                                            const std::string& dtype = "float32",
                                            bool requires_grad = false) {
  UseOneThread();
  return MakeDecoder(TinyConfig(architecture), {dtype, "cpu", requires_grad}, RandomStream(7))
      .value();
}

inline std::vector<int32_t> RandomTokens(int64_t num_tokens, int64_t vocab_size,
                                         RandomStream* random) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < num_tokens; ++i) {
    ids.push_back(static_cast<int32_t>(random->NextBelow(vocab_size)));
  }
  return ids;
}

inline std::map<std::string, at::Tensor> ReadTensors(const std::string& path) {
  std::map<std::string, at::Tensor> tensors;
  const auto file = SafetensorsFile::Open(path).value();
  for (const auto& [name, view] : file->tensors()) {
    const at::ScalarType dtype =
        view.dtype == "I64" ? at::kLong : ScalarTypeOfSafetensors(view.dtype).value();
    at::Tensor tensor = at::empty(view.shape, dtype);
    std::memcpy(tensor.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
    tensors[name] = tensor;
  }
  return tensors;
}

inline double MaxAbs(const at::Tensor& x) { return x.to(at::kFloat).abs().max().item<double>(); }
inline double MeanAbs(const at::Tensor& x) { return x.to(at::kFloat).abs().mean().item<double>(); }

}  // namespace taopd::testing
