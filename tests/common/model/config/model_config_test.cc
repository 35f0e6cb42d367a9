#include "common/model/config/model_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

using Json = nlohmann::ordered_json;

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
  EXPECT_EQ(config.rope.theta, 10000.0);
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
  EXPECT_EQ(old_rope.rope.theta, 1e6);
  ASSERT_OK_AND_ASSIGN(
      const ModelConfig new_rope,
      ParseWith("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 500000.0}}));
  EXPECT_EQ(new_rope.rope.theta, 5e5);
  ASSERT_OK_AND_ASSIGN(const ModelConfig one_eos, ParseWith("eos_token_id", 7));
  EXPECT_EQ(one_eos.eos_token_ids, std::vector<int32_t>({7}));
  ASSERT_OK_AND_ASSIGN(const ModelConfig more_eos,
                       ParseWith("eos_token_id", Json::array({7, 9, 7, 1 << 30})));
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
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "hidden_size 66");
}

TEST(ParseModelConfig, RefusesByNameWhatIsNotImplemented) {
  EXPECT_ERROR(ParseWith("rope_scaling", Json({{"rope_type", "longrope"}, {"factor", 8.0}})),
               kUnimplemented, "rope_scaling: type \"longrope\"");
  EXPECT_ERROR(ParseWith("rope_scaling", Json({{"type", "mrope"}})), kUnimplemented, "mrope");
  EXPECT_ERROR(ParseWith("rope_scaling", Json({{"type", "linear"}, {"factor", 2.0}, {"skew", 1}})),
               kUnimplemented, "skew");
  EXPECT_ERROR(ParseWith("rope_parameters", Json({{"full_attention", Json::object()}})),
               kUnimplemented, "full_attention");
  EXPECT_ERROR(ParseWith("partial_rotary_factor", 0.5), kUnimplemented,
               "partial_rotary_factor 0.5");
  EXPECT_ERROR(ParseWith("use_mrope", true), kUnimplemented, "use_mrope");
  EXPECT_ERROR(ParseWith("layer_types", Json::array({"full_attention", "linear_attention"})),
               kUnimplemented, "linear_attention");
  EXPECT_ERROR(ParseWith("hidden_act", "gelu"), kUnimplemented, "hidden_act \"gelu\"");
  EXPECT_ERROR(ParseWith("attention_dropout", 0.1), kUnimplemented, "attention_dropout 0.1");
  EXPECT_ERROR(ParseWith("quantization_config", Json({{"bits", 4}})), kUnimplemented,
               "quantization_config");
  EXPECT_ERROR(ParseWith("mlp_bias", true), kUnimplemented, "mlp_bias");
  EXPECT_ERROR(ParseWith("architectures", Json::array({"MambaForCausalLM"})), kUnimplemented,
               "LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM");
  Json llama = MinimalJson();
  llama["architectures"] = Json::array({"LlamaForCausalLM"});
  llama["use_sliding_window"] = true;
  EXPECT_ERROR(ParseModelConfig(llama.dump()), kUnimplemented, "use_sliding_window");
}

TEST(ParseModelConfig, RopeScaling) {
  const Json llama3 = {{"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 128},
                       {"rope_type", "llama3"}};
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseWith("rope_scaling", llama3));
  EXPECT_EQ(config.rope.type, RopeType::kLlama3);
  EXPECT_EQ(config.rope.factor, 8.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 128);
  // The spelling in Qwen's model cards: "type", and the outer rope_theta.
  Json json = MinimalJson();
  json["rope_theta"] = 1000000.0;
  json["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 256}};
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5.0}};  // takes second place
  ASSERT_OK_AND_ASSIGN(const ModelConfig yarn, ParseModelConfig(json.dump()));
  EXPECT_EQ(yarn.rope.type, RopeType::kYarn);
  EXPECT_EQ(yarn.rope.theta, 1e6);
  EXPECT_EQ(yarn.rope.beta_fast, 32.0);
  json["rope_scaling"].erase("original_max_position_embeddings");
  ASSERT_OK_AND_ASSIGN(const ModelConfig derived, ParseModelConfig(json.dump()));
  EXPECT_EQ(derived.rope.original_max_position_embeddings, 512);

  Json bad = llama3;
  bad["high_freq_factor"] = 1.0;
  EXPECT_ERROR(ParseWith("rope_scaling", bad), kInvalidArgument, "high_freq_factor 1");
  bad = llama3;
  bad.erase("low_freq_factor");
  EXPECT_ERROR(ParseWith("rope_scaling", bad), kInvalidArgument, "low_freq_factor is missing");
  EXPECT_ERROR(ParseWith("rope_scaling", Json({{"rope_type", "linear"}})), kInvalidArgument,
               "factor is missing");
  EXPECT_ERROR(ParseWith("rope_scaling", Json({{"rope_type", "linear"}, {"factor", 0}})),
               kInvalidArgument, "factor 0");
}

TEST(ParseModelConfig, SlidingWindows) {
  Json json = MinimalJson();
  json["sliding_window"] = 32;  // belongs to a model that does not use it
  json["max_window_layers"] = 1;
  ASSERT_OK_AND_ASSIGN(const ModelConfig off, ParseModelConfig(json.dump()));
  EXPECT_FALSE(off.HasSlidingLayers());
  json["use_sliding_window"] = true;
  ASSERT_OK_AND_ASSIGN(const ModelConfig from_layer_one, ParseModelConfig(json.dump()));
  EXPECT_EQ(from_layer_one.SlidingWindow(0), 0);
  EXPECT_EQ(from_layer_one.SlidingWindow(1), 32);
  json["layer_types"] = Json::array({"sliding_attention", "full_attention"});
  ASSERT_OK_AND_ASSIGN(const ModelConfig by_type, ParseModelConfig(json.dump()));
  EXPECT_EQ(by_type.SlidingWindow(0), 32);
  EXPECT_EQ(by_type.SlidingWindow(1), 0);
  json["sliding_window"] = nullptr;
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "sliding_attention");
  json["layer_types"] = Json::array({"full_attention"});
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "layer_types has 1 entries");
}

TEST(ParseModelConfig, MixtureOfExperts) {
  Json json = MinimalJson();
  json["architectures"] = Json::array({"Qwen3MoeForCausalLM"});
  json["num_hidden_layers"] = 6;
  json["num_experts"] = 8;
  json["num_experts_per_tok"] = 2;
  json["decoder_sparse_step"] = 2;
  json["mlp_only_layers"] = Json::array({3});
  ASSERT_OK_AND_ASSIGN(const ModelConfig config, ParseModelConfig(json.dump()));
  EXPECT_EQ(config.moe.sparse_layers, std::vector<bool>({false, true, false, false, false, true}));
  EXPECT_EQ(config.moe.intermediate_size, 768);
  EXPECT_FALSE(config.moe.normalize_gates);
  json["num_local_experts"] = 9;
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "num_local_experts 9");
  json.erase("num_experts");
  ASSERT_OK_AND_ASSIGN(const ModelConfig local, ParseModelConfig(json.dump()));
  EXPECT_EQ(local.moe.num_experts, 9);
  json["num_experts_per_tok"] = 10;
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "num_experts_per_tok 10");
  json["num_experts_per_tok"] = 2;
  json["mlp_only_layers"] = Json::array({6});
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "mlp_only_layers 6");
  json["mlp_only_layers"] = Json::array();
  json["num_hidden_layers"] = 4096;
  json["num_local_experts"] = 4096;
  EXPECT_ERROR(ParseModelConfig(json.dump()), kInvalidArgument, "num_hidden_layers");
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
    EXPECT_ERROR(ParseWith(bad.key, bad.value), kInvalidArgument, bad.key);
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
  config.rope.theta = 1e6;
  const std::string text = ModelConfigJson(config);
  ASSERT_OK_AND_ASSIGN(const ModelConfig read, ParseModelConfig(text));
  EXPECT_EQ(ModelConfigJson(read), text);
  EXPECT_EQ(read.eos_token_ids, config.eos_token_ids);
  EXPECT_EQ(read.pad_token_id, config.pad_token_id);
  EXPECT_EQ(read.rope.theta, 1e6);
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
  EXPECT_ERROR(LoadModelConfig(dir.path()), kNotFound, "config.json");
  WriteFile(dir.File("config.json"), json.dump());
  ASSERT_OK_AND_ASSIGN(const ModelConfig alone, LoadModelConfig(dir.path()));
  EXPECT_EQ(alone.eos_token_ids, std::vector<int32_t>({1}));
  WriteFile(dir.File("generation_config.json"), "{\"eos_token_id\": [5, 6]}");
  ASSERT_OK_AND_ASSIGN(const ModelConfig both, LoadModelConfig(dir.path()));
  EXPECT_EQ(both.eos_token_ids, std::vector<int32_t>({5, 6}));
  WriteFile(dir.File("generation_config.json"), "{\"eos_token_id\": \"x\"}");
  EXPECT_ERROR(LoadModelConfig(dir.path()), kInvalidArgument, "generation_config.json");
}

// Every file under configs/, against the count of transformers (golden/make_parameter_counts.py).
TEST(PublishedConfigs, ParseAndHaveTransformersParameterCount) {
  const std::string root = SharedData("configs");
  if (root.empty()) GTEST_SKIP() << "shared data is absent";
  const Json counts =
      Json::parse(ReadFile(SourcePath("tests/common/model/golden/parameter_counts.json")));
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (!entry.path().filename().string().starts_with("config")) continue;
    const std::string name = std::filesystem::relative(entry.path(), root).string();
    ++num_files;
    ASSERT_TRUE(counts["num_parameters"].contains(name)) << name;
    const auto config = ParseModelConfig(ReadFile(entry.path().string()));
    ASSERT_TRUE(config.ok()) << name << ": " << config.status().ToString();
    EXPECT_EQ(config->NumParameters(), counts["num_parameters"][name].get<int64_t>()) << name;
    // A file written only from the fields has the same meaning.
    ModelConfig fields = *config;
    fields.raw_json.clear();
    const std::string text = ModelConfigJson(fields);
    const auto read = ParseModelConfig(text);
    ASSERT_TRUE(read.ok()) << name << ": " << read.status().ToString();
    EXPECT_EQ(read->NumParameters(), config->NumParameters()) << name;
    EXPECT_EQ(ModelConfigJson(*read), text) << name;
  }
  EXPECT_EQ(num_files, counts["num_parameters"].size());
}

}  // namespace
}  // namespace taopd::testing
