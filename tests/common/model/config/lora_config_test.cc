// Configurations of adapters: what is read, resolved and refused.
#include "common/model/config/lora_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/model/weights/lora_weights.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json Minimal() {
  return {{"peft_type", "LORA"}, {"r", 8}, {"lora_alpha", 16}, {"target_modules", {"q_proj"}}};
}

absl::StatusOr<LoraConfig> ReadWith(const char* name, const nlohmann::json& value) {
  const TempDir dir;
  nlohmann::json json = Minimal();
  json[name] = value;
  WriteFile(dir.File("adapter_config.json"), json.dump());
  return ReadLoraConfig(dir.path());
}

TEST(LoraConfig, ReadsPeftsFields) {
  ASSERT_OK_AND_ASSIGN(const LoraConfig plain, ReadWith("lora_dropout", 0.1));
  EXPECT_EQ(plain.rank, 8);
  EXPECT_EQ(plain.Scale(), 2.0);
  EXPECT_EQ(plain.dropout, 0.1);
  EXPECT_THAT(plain.target_modules, ElementsAre("q_proj"));
  ASSERT_OK_AND_ASSIGN(const LoraConfig rslora, ReadWith("use_rslora", true));
  EXPECT_DOUBLE_EQ(rslora.Scale(), 16 / std::sqrt(8.0));
  EXPECT_OK(ReadWith("init_lora_weights", "gaussian").status());
  EXPECT_OK(ReadWith("rank_pattern", nlohmann::json::object()).status());
  EXPECT_OK(ReadWith("anything_new", nullptr).status());
}

TEST(LoraConfig, RefusesWhatWouldChangeTheResults) {
  const std::vector<std::pair<const char*, nlohmann::json>> refused = {
      {"peft_type", "LOHA"},
      {"bias", "all"},
      {"use_dora", true},
      {"modules_to_save", {"lm_head"}},
      {"rank_pattern", {{"q", 4}}},
      {"alpha_pattern", {{"q", 4}}},
      {"fan_in_fan_out", true},
      {"init_lora_weights", "pissa"},
      {"target_parameters", {"w"}},
      {"anything_new", true},
      {"layer_replication", {{0, 1}}},
      {"trainable_token_indices", {1}}};
  for (const auto& [name, value] : refused) {
    const absl::Status status = ReadWith(name, value).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"r", 0},
                                                           {"r", "8"},
                                                           {"r", 1 << 20},
                                                           {"lora_alpha", 0},
                                                           {"lora_alpha", "x"},
                                                           {"use_rslora", "yes"}}) {
    EXPECT_EQ(ReadWith(name, value).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
  const TempDir dir;
  WriteFile(dir.File("adapter_config.json"), "[1, 2");
  EXPECT_EQ(ReadLoraConfig(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LoraConfig, WritesWhatItReads) {
  LoraConfig config;
  config.rank = 4;
  config.alpha = 6.5;
  config.target_modules = {"k_proj", "q_proj"};
  config.init = LoraInit::kGaussian;
  config.use_rslora = true;
  config.base_model = "/models/base";
  const TempDir dir;
  WriteFile(dir.File("adapter_config.json"), LoraConfigJson(config));
  ASSERT_OK_AND_ASSIGN(const LoraConfig read, ReadLoraConfig(dir.path()));
  EXPECT_EQ(LoraConfigJson(read), LoraConfigJson(config));
  EXPECT_TRUE(IsAdapterDir(dir.path()));
  EXPECT_EQ(BaseModelDir(dir.path()).status().code(), absl::StatusCode::kNotFound);
  WriteFile(dir.File("config.json"), "{}");  // a model that has an adapter beside it
  EXPECT_FALSE(IsAdapterDir(dir.path()));
}

TEST(LoraTargets, AreThoseOfTheModel) {
  const ModelConfig dense = TinyConfig("LlamaForCausalLM");
  ASSERT_OK_AND_ASSIGN(const auto all, ResolveTargetModules({"all-linear"}, dense));
  EXPECT_THAT(all, ElementsAre("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                               "down_proj"));
  ModelConfig sparse = TinyConfig("Qwen3MoeForCausalLM");
  sparse.moe.sparse_layers = {true, true};
  ASSERT_OK_AND_ASSIGN(const auto attention, ResolveTargetModules({"all-linear"}, sparse));
  EXPECT_THAT(attention, ElementsAre("q_proj", "k_proj", "v_proj", "o_proj"));
  EXPECT_THAT(std::string(ResolveTargetModules({"up_proj"}, sparse).status().message()),
              HasSubstr("only in its experts"));
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {}, {"lm_head"}, {"q_proj", "q_proj"}, {"q_proj", "all-linear"}}) {
    EXPECT_EQ(CheckLoraTargets(wrong).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(LoraFiles, OfAnotherModelAreRefusedByName) {
  const std::string golden = SourcePath("tests/common/model/golden/");
  DecoderOptions options = {"float32", "cpu", false};
  options.merged_adapter_dir = golden + "lora_qwen3_untied";
  // Another head_dim, and no MLP outside of its experts.
  const absl::Status other = LoadDecoder(golden + "qwen3_tied", options).status();
  EXPECT_THAT(std::string(other.message()), HasSubstr("self_attn.q_proj.lora_B.weight has shape"));
  const absl::Status sparse = LoadDecoder(golden + "qwen3_moe", options).status();
  EXPECT_EQ(sparse.code(), absl::StatusCode::kInvalidArgument);
  // A file without one of the two matrices.
  const TempDir dir;
  std::filesystem::copy(
      golden + "lora_qwen3_untied", dir.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      SafetensorsFile::Open(golden + "lora_qwen3_untied/adapter_model.safetensors"));
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, view] : file->tensors()) {
    if (name != "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight")
      tensors.push_back({name, view.dtype, view.shape, view.bytes});
  }
  ASSERT_OK(WriteSafetensors(dir.File("adapter_model.safetensors"), tensors));
  options.merged_adapter_dir = dir.path();
  EXPECT_THAT(std::string(LoadDecoder(golden + "qwen3_untied", options).status().message()),
              HasSubstr("layers.1.mlp.up_proj.lora_B.weight is missing"));
  tensors.push_back({"base_model.model.lm_head.lora_A.weight", "F32", {0}, {}});
  ASSERT_OK(WriteSafetensors(dir.File("adapter_model.safetensors"), tensors));
  EXPECT_FALSE(LoadDecoder(golden + "qwen3_untied", options).ok());
}

}  // namespace
}  // namespace taopd::testing
