#include "common/model/model_config.h"

#include <gtest/gtest.h>

#include <cctype>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;
using ::absl::StatusCode;

Json MinimalJson() {
  return {{"architectures", Json::array({"Qwen3ForCausalLM"})},
          {"vocab_size", 100},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"max_position_embeddings", 512}};
}

absl::StatusOr<ModelConfig> ParseWith(const std::string& key, const Json& value) {
  Json json = MinimalJson();
  json[key] = value;
  return ParseModelConfig(json.dump());
}

TEST(ParseModelConfig, DefaultsAreThoseOfTransformers) {
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(MinimalJson().dump()));
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_TRUE(config.qk_norm);
  EXPECT_TRUE(config.eos_token_ids.empty());
  EXPECT_EQ(config.dtype, "");
}

TEST(ParseModelConfig, OldAndNewSpellings) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseWith(key, "bfloat16"));
    EXPECT_EQ(config.dtype, "bfloat16") << key;
  }
  ASSERT_OK_AND_ASSIGN(const ModelConfig old_rope, ParseWith("rope_theta", 1000000));
  EXPECT_EQ(old_rope.rope_theta, 1e6);
  ASSERT_OK_AND_ASSIGN(
      const ModelConfig new_rope,
      ParseWith("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}));
  EXPECT_EQ(new_rope.rope_theta, 5e5);
  ASSERT_OK_AND_ASSIGN(const ModelConfig one_eos, ParseWith("eos_token_id", 7));
  EXPECT_EQ(one_eos.eos_token_ids, std::vector<int32_t>({7}));
  ASSERT_OK_AND_ASSIGN(const ModelConfig more_eos,
                       ParseWith("eos_token_id", Json::array({7, 9, 7})));
  EXPECT_EQ(more_eos.eos_token_ids, std::vector<int32_t>({7, 9}));
}

TEST(ParseModelConfig, LlamaDerivesHeadSizes) {
  Json json = MinimalJson();
  json["architectures"] = Json::array({"LlamaForCausalLM"});
  json.erase("head_dim");
  json.erase("num_key_value_heads");
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(json.dump()));
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_FALSE(config.qk_norm);
  json["hidden_size"] = 66;
  EXPECT_ERROR(ParseModelConfig(json.dump()), StatusCode::kInvalidArgument, "hidden_size 66");
}

TEST(ParseModelConfig, RefusesByNameWhatIsNotImplemented) {
  const Json llama3_rope = {{"rope_type", "llama3"}, {"factor", 8.0}};
  EXPECT_ERROR(ParseWith("rope_scaling", llama3_rope), StatusCode::kUnimplemented,
               "rope_scaling of type \"llama3\"");
  EXPECT_ERROR(ParseWith("rope_scaling", Json({{"type", "linear"}, {"factor", 2.0}})),
               StatusCode::kUnimplemented, "linear");
  EXPECT_ERROR(ParseWith("rope_parameters", Json({{"rope_type", "yarn"}})),
               StatusCode::kUnimplemented, "yarn");
  EXPECT_ERROR(ParseWith("rope_parameters", Json({{"full_attention", Json::object()}})),
               StatusCode::kUnimplemented, "full_attention");
  EXPECT_ERROR(ParseWith("partial_rotary_factor", 0.5), StatusCode::kUnimplemented,
               "partial_rotary_factor 0.5");
  EXPECT_ERROR(ParseWith("use_sliding_window", true), StatusCode::kUnimplemented,
               "use_sliding_window");
  EXPECT_ERROR(ParseWith("layer_types", Json::array({"full_attention", "sliding_attention"})),
               StatusCode::kUnimplemented, "sliding_attention");
  EXPECT_ERROR(ParseWith("hidden_act", "gelu"), StatusCode::kUnimplemented, "hidden_act \"gelu\"");
  EXPECT_ERROR(ParseWith("attention_dropout", 0.1), StatusCode::kUnimplemented,
               "attention_dropout 0.1");
  EXPECT_ERROR(ParseWith("quantization_config", Json({{"bits", 4}})), StatusCode::kUnimplemented,
               "quantization_config");
  EXPECT_ERROR(ParseWith("mlp_bias", true), StatusCode::kUnimplemented, "mlp_bias");
  EXPECT_ERROR(ParseWith("architectures", Json::array({"MambaForCausalLM"})),
               StatusCode::kUnimplemented, "LlamaForCausalLM, Qwen3ForCausalLM");
}

TEST(ParseModelConfig, RefusesBadValuesByName) {
  struct Case {
    const char* key;
    Json value;
  };
  const Case kCases[] = {{"hidden_size", 0},
                         {"hidden_size", -64},
                         {"hidden_size", 1e18},
                         {"hidden_size", 18446744073709551615ull},
                         {"hidden_size", "64"},
                         {"hidden_size", nullptr},
                         {"vocab_size", 1 << 30},
                         {"num_hidden_layers", 1000000},
                         {"num_key_value_heads", 3},
                         {"head_dim", 31},
                         {"head_dim", 100000},
                         {"rms_norm_eps", "small"},
                         {"rms_norm_eps", -1e-6},
                         {"rope_theta", 0},
                         {"tie_word_embeddings", "yes"},
                         {"eos_token_id", "</s>"},
                         {"eos_token_id", Json::array({1, 1e300})},
                         {"pad_token_id", 100},
                         {"model_type", "llama"},
                         {"architectures", Json::array()},
                         {"architectures", nullptr},
                         {"rope_parameters", 3}};
  for (const Case& bad : kCases) {
    EXPECT_ERROR(ParseWith(bad.key, bad.value), StatusCode::kInvalidArgument, bad.key);
  }
  for (const char* text : {"", "[]", "{", "null", "{\"a\":1,\"a\":2}"}) {
    EXPECT_FALSE(ParseModelConfig(text).ok()) << text;
  }
  EXPECT_FALSE(ParseModelConfig(std::string(100000, '[')).ok());
}

TEST(ModelConfigJson, ReadsBackTheSame) {
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ParseModelConfig(MinimalJson().dump()));
  config.raw_json.clear();
  config.dtype = "bfloat16";
  config.eos_token_ids = {3, 4};
  config.pad_token_id = 5;
  config.rope_theta = 1e6;
  const std::string text = ModelConfigJson(config);
  ASSERT_OK_AND_ASSIGN(const ModelConfig read, ParseModelConfig(text));
  EXPECT_EQ(ModelConfigJson(read), text);
  EXPECT_EQ(read.eos_token_ids, config.eos_token_ids);
  EXPECT_EQ(read.pad_token_id, config.pad_token_id);
  EXPECT_EQ(read.rope_theta, 1e6);
  EXPECT_EQ(read.dtype, "bfloat16");
}

TEST(ModelConfigJson, KeepsKeysThatItDoesNotKnow) {
  Json json = MinimalJson();
  json["dtype"] = "float32";
  json["my_note"] = "kept";
  ASSERT_OK_AND_ASSIGN(ModelConfig config, ParseModelConfig(json.dump()));
  config.dtype = "bfloat16";
  const Json written = Json::parse(ModelConfigJson(config));
  EXPECT_EQ(written["my_note"], "kept");
  EXPECT_EQ(written["dtype"], "bfloat16");
  EXPECT_FALSE(written.contains("torch_dtype"));
}

TEST(LoadModelConfig, EndIdsOfGenerationConfigReplaceThoseOfConfig) {
  const TempDir dir;
  Json json = MinimalJson();
  json["eos_token_id"] = 1;
  EXPECT_ERROR(LoadModelConfig(dir.path()), StatusCode::kNotFound, "config.json");
  WriteFile(dir.File("config.json"), json.dump());
  ASSERT_OK_AND_ASSIGN(const ModelConfig alone, LoadModelConfig(dir.path()));
  EXPECT_EQ(alone.eos_token_ids, std::vector<int32_t>({1}));
  WriteFile(dir.File("generation_config.json"), "{\"eos_token_id\": [5, 6]}");
  ASSERT_OK_AND_ASSIGN(const ModelConfig both, LoadModelConfig(dir.path()));
  EXPECT_EQ(both.eos_token_ids, std::vector<int32_t>({5, 6}));
  WriteFile(dir.File("generation_config.json"), "{\"eos_token_id\": \"x\"}");
  EXPECT_ERROR(LoadModelConfig(dir.path()), StatusCode::kInvalidArgument, "generation_config.json");
}

struct Published {
  const char* file;
  int64_t num_parameters;  // 0: refused
  const char* refusal;
};

class PublishedConfigs : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedConfigs, IsReadOrRefusedByName) {
  const std::string path = SharedData(std::string("configs/") + GetParam().file);
  if (path.empty()) GTEST_SKIP() << "shared data is absent";
  const auto config = ParseModelConfig(ReadFile(path));
  if (GetParam().num_parameters == 0) {
    EXPECT_ERROR(config, StatusCode::kUnimplemented, GetParam().refusal);
    return;
  }
  ASSERT_OK(config);
  EXPECT_EQ(config->NumParameters(), GetParam().num_parameters);
}

// Parameter counts: those of the published models (1,720,574,976 and 8,190,735,360).
INSTANTIATE_TEST_SUITE_P(
    All, PublishedConfigs,
    ::testing::Values(
        Published{"Qwen3-1.7B/config.json", 1720574976, ""},
        Published{"Qwen3-1.7B/config_resaved_4.57.json", 1720574976, ""},
        Published{"Qwen3-8B/config.json", 8190735360, ""},
        Published{"Qwen3-8B/config_tt-metal_no_head_dim.json", 8190735360, ""},
        Published{"veomni_qwen3_toy/config.json", 1630556672, ""},
        Published{"Llama-3.1-8B/config.json", 0, "rope_scaling of type \"llama3\""},
        Published{"Llama-3.1-8B-Instruct/config.json", 0, "rope_scaling of type \"llama3\""},
        Published{"veomni_llama31_toy/config.json", 0, "rope_scaling of type \"llama3\""},
        Published{"Qwen3-30B-A3B/config.json", 0, "Qwen3MoeForCausalLM"},
        Published{"Qwen3-30B-A3B-Instruct-2507/config.json", 0, "Qwen3MoeForCausalLM"},
        Published{"veomni_qwen3_moe_toy/config.json", 0, "Qwen3MoeForCausalLM"},
        Published{"Qwen2.5-7B/config.json", 0, "Qwen2ForCausalLM"},
        Published{"Qwen2.5-7B-Instruct/config.json", 0, "Qwen2ForCausalLM"},
        Published{"Qwen2.5-1.5B-Instruct/config.json", 0, "Qwen2ForCausalLM"},
        Published{"DeepSeek-R1-Distill-Qwen-1.5B/config.json", 0, "Qwen2ForCausalLM"},
        Published{"DeepSeek-R1-Distill-Qwen-7B/config.json", 0, "Qwen2ForCausalLM"},
        Published{"veomni_qwen2_toy/config.json", 0, "Qwen2ForCausalLM"},
        Published{"veomni_qwen25_toy/config.json", 0, "Qwen2ForCausalLM"}),
    [](const auto& info) {
      std::string name;
      for (char c : std::string(info.param.file)) name += std::isalnum(c) ? c : '_';
      return name;
    });

}  // namespace
}  // namespace taopd::testing
