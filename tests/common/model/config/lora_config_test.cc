// Configurations of adapters: what is read, resolved and refused.
#include "common/model/config/lora_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

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
    EXPECT_EQ(status.code(), kUnimplemented) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, nlohmann::json>>{{"r", 0},
                                                           {"r", "8"},
                                                           {"r", 1 << 20},
                                                           {"lora_alpha", 0},
                                                           {"lora_alpha", "x"},
                                                           {"use_rslora", "yes"},
                                                           {"modules_to_save", "lm_head"},
                                                           {"modules_to_save", {"norm", 1}},
                                                           {"ensure_weight_tying", "no"}}) {
    EXPECT_EQ(ReadWith(name, value).status().code(), kInvalidArgument) << name;
  }
  const TempDir dir;
  WriteFile(dir.File("adapter_config.json"), "[1, 2");
  EXPECT_EQ(ReadLoraConfig(dir.path()).status().code(), kInvalidArgument);
}

TEST(LoraConfig, WritesWhatItReads) {
  const LoraConfig config = {.rank = 4,
                             .alpha = 6.5,
                             .target_modules = {"k_proj", "q_proj"},
                             .modules_to_save = {"embed_tokens", "norm"},
                             .ensure_weight_tying = true,
                             .init = LoraInit::kGaussian,
                             .use_rslora = true,
                             .base_model = "/models/base"};
  const TempDir dir;
  WriteFile(dir.File("adapter_config.json"), LoraConfigJson(config));
  ASSERT_OK_AND_ASSIGN(const LoraConfig read, ReadLoraConfig(dir.path()));
  EXPECT_EQ(LoraConfigJson(read), LoraConfigJson(config));
  EXPECT_TRUE(IsAdapterDir(dir.path()));
  EXPECT_EQ(BaseModelDir(dir.path()).status().code(), kNotFound);
  WriteFile(dir.File("config.json"), "{}");  // a model with an adapter next to it
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
    EXPECT_EQ(CheckLoraTargets(wrong).code(), kInvalidArgument);
  }
}

TEST(ModulesToSave, AreThoseOfTheModel) {
  ModelConfig model = TinyConfig("Qwen3ForCausalLM");
  const auto resolve = [&](std::vector<std::string> names) {
    LoraConfig lora = {.modules_to_save = std::move(names)};
    EXPECT_OK(ResolveModulesToSave(model, &lora));
    return lora;
  };
  const int64_t H = model.hidden_size, V = model.vocab_size, L = model.num_hidden_layers;
  // Norms of queries and keys, two of each layer, and the last one.
  const int64_t norms = L * 2 * model.head_dim + L * 2 * H + H;
  model.tie_word_embeddings = false;
  const LoraConfig untied = resolve({"norm", "lm_head", "embed_tokens"});
  EXPECT_FALSE(untied.ensure_weight_tying);
  const LoraCounts counts = CountLoraParameters(model, untied);
  EXPECT_EQ(counts.norms, norms);
  EXPECT_EQ(counts.head, V * H);
  EXPECT_EQ(counts.embedding, V * H);
  EXPECT_EQ(CountLoraParameters(model, resolve({"model.norm"})).total(), H);
  model.tie_word_embeddings = true;
  const LoraConfig tied = resolve({"lm_head", "embed_tokens", "q_norm"});
  EXPECT_TRUE(tied.ensure_weight_tying);
  EXPECT_THAT(tied.modules_to_save, ElementsAre("embed_tokens", "q_norm"));
  EXPECT_EQ(CountLoraParameters(model, tied).saved(), V * H + L * model.head_dim);
  EXPECT_FALSE(resolve({"norm"}).ensure_weight_tying);
  EXPECT_EQ(CheckModulesToSave({"score"}).message(),
            "\"score\" is not one of embed_tokens, lm_head, norm, model.norm, input_layernorm, "
            "post_attention_layernorm, q_norm, k_norm");
  EXPECT_EQ(CheckModulesToSave({"norm", "norm"}).message(), "\"norm\" occurs twice");
  const ModelConfig llama = TinyConfig("LlamaForCausalLM");
  LoraConfig q_norm;
  q_norm.modules_to_save = {"q_norm"};
  EXPECT_EQ(ResolveModulesToSave(llama, &q_norm).message(), "the model has no \"q_norm\"");
}

// Writes a directory with the adapter of a golden file, changed.
void WriteChanged(const std::string& name, const std::function<void(nlohmann::json*)>& config,
                  const std::function<void(std::vector<TensorToWrite>*)>& weights,
                  const TempDir& dir) {
  const std::string from = SourcePath("tests/common/model/golden/lora_" + name);
  auto json = nlohmann::json::parse(ReadFile(from + "/adapter_config.json"));
  config(&json);
  WriteFile(dir.File("adapter_config.json"), json.dump());
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(from + "/adapter_model.safetensors"));
  std::vector<TensorToWrite> tensors;
  for (const auto& [tensor, view] : file->tensors())
    tensors.push_back({tensor, view.dtype, view.shape, view.bytes});
  weights(&tensors);
  ASSERT_OK(WriteSafetensors(dir.File("adapter_model.safetensors"), tensors));
}

void SameConfig(nlohmann::json*) {}
void SameWeights(std::vector<TensorToWrite>*) {}
std::function<void(std::vector<TensorToWrite>*)> Without(const std::string& name) {
  return [name](std::vector<TensorToWrite>* tensors) {
    EXPECT_EQ(std::erase_if(*tensors, [&](const auto& t) { return t.name == name; }), 1);
  };
}

// Loads a model of the golden files with the adapter of `dir`.
absl::Status LoadMerged(const std::string& base, const std::string& dir) {
  DecoderOptions options = {"float32", "cpu", false};
  options.merged_adapter_dir = dir;
  return LoadDecoder(SourcePath("tests/common/model/golden/" + base), options).status();
}

TEST(LoraFiles, SavedModulesThatDoNotFitAreRefusedByName) {
  const TempDir missing, unnamed, unknown, untied, tied_again, half;
  WriteChanged("saved_qwen3_untied", SameConfig, Without("base_model.model.model.norm.weight"),
               missing);
  EXPECT_THAT(std::string(LoadMerged("qwen3_untied", missing.path()).message()),
              HasSubstr("tensor base_model.model.model.norm.weight is missing"));
  WriteChanged(
      "saved_qwen3_untied",
      [](auto* json) {
        (*json)["modules_to_save"] = {"norm", "lm_head"};
      },
      SameWeights, unnamed);
  EXPECT_THAT(std::string(LoadMerged("qwen3_untied", unnamed.path()).message()),
              HasSubstr("embed_tokens.weight is not an adapter"));
  WriteChanged(
      "saved_qwen3_untied", [](auto* json) { (*json)["modules_to_save"].push_back("score"); },
      SameWeights, unknown);
  EXPECT_THAT(std::string(LoadMerged("qwen3_untied", unknown.path()).message()),
              HasSubstr("modules_to_save has \"score\""));

  // PEFT's default unties a head: then the file has only the embedding.
  const std::string head = "base_model.model.lm_head.weight";
  const auto no_tying = [](auto* json) { (*json)["ensure_weight_tying"] = false; };
  WriteChanged("saved_qwen2_tied", no_tying, Without(head), untied);
  EXPECT_EQ(LoadMerged("qwen2_tied", untied.path()).code(), kUnimplemented);
  EXPECT_THAT(std::string(LoadMerged("qwen2_tied", untied.path()).message()),
              HasSubstr("ensure_weight_tying"));
  WriteChanged("saved_qwen2_tied", SameConfig, Without(head), tied_again);
  EXPECT_OK(LoadMerged("qwen2_tied", tied_again.path()));
  const std::vector<std::byte> zeros(26 * 16 * sizeof(float));
  WriteChanged(
      "saved_qwen2_tied", SameConfig,
      [&](std::vector<TensorToWrite>* tensors) {
        for (TensorToWrite& tensor : *tensors) {
          if (tensor.name == head) tensor.bytes = zeros;
        }
      },
      half);
  EXPECT_EQ(LoadMerged("qwen2_tied", half.path()).code(), kUnimplemented);
}

// Both of PEFT's forms: a Linear per expert, and the stacked parameter.
TEST(LoraFiles, AdaptersOfExpertsAreRefusedByName) {
  const TempDir per_expert, stacked;
  const std::string tensor =
      "base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_A.weight";
  const std::vector<std::byte> zeros(2 * 16 * sizeof(float));
  WriteChanged(
      "qwen3_moe", SameConfig,
      [&](std::vector<TensorToWrite>* tensors) {
        tensors->push_back({tensor, "F32", {2, 16}, zeros});
      },
      per_expert);
  WriteChanged(
      "qwen3_moe",
      [](nlohmann::json* json) { (*json)["target_parameters"] = {"mlp.experts.gate_up_proj"}; },
      SameWeights, stacked);
  for (const auto& [dir, says] : {std::pair(&per_expert, tensor + ": experts can have no adapter"),
                                  {&stacked, "target_parameters = "}}) {
    const absl::Status status = LoadMerged("qwen3_moe", dir->path());
    EXPECT_EQ(status.code(), kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  }
}

TEST(LoraFiles, OfAnotherModelAreRefusedByName) {
  const std::string untied = SourcePath("tests/common/model/golden/lora_qwen3_untied");
  // Another head_dim, and no MLP outside of its experts.
  EXPECT_THAT(std::string(LoadMerged("qwen3_tied", untied).message()),
              HasSubstr("self_attn.q_proj.lora_B.weight has shape"));
  EXPECT_EQ(LoadMerged("qwen3_moe", untied).code(), kInvalidArgument);
  // A file without one of the two matrices, and one with a matrix of another layer.
  const TempDir missing, unexpected;
  WriteChanged("qwen3_untied", SameConfig,
               Without("base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"), missing);
  EXPECT_THAT(std::string(LoadMerged("qwen3_untied", missing.path()).message()),
              HasSubstr("layers.1.mlp.up_proj.lora_B.weight is missing"));
  WriteChanged(
      "qwen3_untied", SameConfig,
      [](std::vector<TensorToWrite>* tensors) {
        tensors->push_back({"base_model.model.lm_head.lora_A.weight", "F32", {0}, {}});
      },
      unexpected);
  EXPECT_FALSE(LoadMerged("qwen3_untied", unexpected.path()).ok());
}

}  // namespace
}  // namespace taopd::testing
