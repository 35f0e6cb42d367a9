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
  using Fields = std::vector<std::pair<const char*, nlohmann::json>>;
  const Fields refused = {{"peft_type", "LOHA"},
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
    EXPECT_ERROR(ReadWith(name, value), kUnimplemented, name);
  }
  for (const auto& [name, value] : Fields{{"r", 0},
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

using Config = nlohmann::json;
using Tensors = std::vector<TensorToWrite>;

// Loads a model of the golden files with the adapter of `dir`.
absl::Status LoadMerged(const std::string& base, const std::string& dir) {
  DecoderOptions options = {"float32", "cpu", false};
  options.merged_adapter_dir = dir;
  return LoadDecoder(SourcePath("tests/common/model/golden/" + base), options).status();
}

// The same with an adapter of the golden files, changed.
absl::Status LoadChanged(const std::string& base, const std::string& adapter,
                         const std::function<void(Config&)>& change_config,
                         const std::function<void(Tensors&)>& change_tensors) {
  const TempDir dir;
  const std::string from = SourcePath("tests/common/model/golden/lora_" + adapter);
  auto config = Config::parse(ReadFile(from + "/adapter_config.json"));
  change_config(config);
  WriteFile(dir.File("adapter_config.json"), config.dump());
  TAOPD_ASSIGN_OR_RETURN(const auto file,
                         SafetensorsFile::Open(from + "/adapter_model.safetensors"));
  Tensors tensors;
  for (const auto& [tensor, view] : file->tensors())
    tensors.push_back({tensor, view.dtype, view.shape, view.bytes});
  change_tensors(tensors);
  EXPECT_OK(WriteSafetensors(dir.File("adapter_model.safetensors"), tensors));
  return LoadMerged(base, dir.path());
}

void SameConfig(Config&) {}
void SameTensors(Tensors&) {}
std::function<void(Tensors&)> Without(const std::string& name) {
  return [name](Tensors& tensors) {
    EXPECT_EQ(std::erase_if(tensors, [&](const auto& t) { return t.name == name; }), 1);
  };
}

TEST(LoraFiles, SavedModulesThatDoNotFitAreRefusedByName) {
  const auto message = [](const auto& change_config, const auto& change_tensors) {
    return std::string(
        LoadChanged("qwen3_untied", "saved_qwen3_untied", change_config, change_tensors).message());
  };
  EXPECT_THAT(message(SameConfig, Without("base_model.model.model.norm.weight")),
              HasSubstr("tensor base_model.model.model.norm.weight is missing"));
  const auto unnamed = [](Config& config) { config["modules_to_save"] = {"norm", "lm_head"}; };
  EXPECT_THAT(message(unnamed, SameTensors), HasSubstr("embed_tokens.weight is not an adapter"));
  const auto unknown = [](Config& config) { config["modules_to_save"].push_back("score"); };
  EXPECT_THAT(message(unknown, SameTensors), HasSubstr("modules_to_save has \"score\""));

  // PEFT's default unties a head: then the file has only the embedding.
  const std::string head = "base_model.model.lm_head.weight";
  const auto load = [](const auto& change_config, const auto& change_tensors) {
    return LoadChanged("qwen2_tied", "saved_qwen2_tied", change_config, change_tensors);
  };
  const auto no_tying = [](Config& config) { config["ensure_weight_tying"] = false; };
  EXPECT_ERROR(load(no_tying, Without(head)), kUnimplemented, "ensure_weight_tying");
  EXPECT_OK(load(SameConfig, Without(head)));
  const std::vector<std::byte> zeros(26 * 16 * sizeof(float));
  const auto half = [&](Tensors& tensors) {
    for (TensorToWrite& tensor : tensors) {
      if (tensor.name == head) tensor.bytes = zeros;
    }
  };
  EXPECT_EQ(load(SameConfig, half).code(), kUnimplemented);
}

// Both of PEFT's forms: a Linear per expert, and the stacked parameter.
TEST(LoraFiles, AdaptersOfExpertsAreRefusedByName) {
  const std::string tensor =
      "base_model.model.model.layers.0.mlp.experts.0.gate_proj.lora_A.weight";
  const std::vector<std::byte> zeros(2 * 16 * sizeof(float));
  const auto add_expert = [&](Tensors& tensors) {
    tensors.push_back({tensor, "F32", {2, 16}, zeros});
  };
  EXPECT_ERROR(LoadChanged("qwen3_moe", "qwen3_moe", SameConfig, add_expert), kUnimplemented,
               tensor + ": experts can have no adapter");
  const auto add_stacked = [](Config& config) {
    config["target_parameters"] = {"mlp.experts.gate_up_proj"};
  };
  EXPECT_ERROR(LoadChanged("qwen3_moe", "qwen3_moe", add_stacked, SameTensors), kUnimplemented,
               "target_parameters = ");
}

TEST(LoraFiles, OfAnotherModelAreRefusedByName) {
  const std::string untied = SourcePath("tests/common/model/golden/lora_qwen3_untied");
  // Another head_dim, and no MLP outside of its experts.
  EXPECT_THAT(std::string(LoadMerged("qwen3_tied", untied).message()),
              HasSubstr("self_attn.q_proj.lora_B.weight has shape"));
  EXPECT_EQ(LoadMerged("qwen3_moe", untied).code(), kInvalidArgument);
  // A file without one of the two matrices, and one with a matrix of another layer.
  const auto load = [](const auto& change_tensors) {
    return LoadChanged("qwen3_untied", "qwen3_untied", SameConfig, change_tensors);
  };
  const std::string missing = "layers.1.mlp.up_proj.lora_B.weight";
  EXPECT_THAT(std::string(load(Without("base_model.model.model." + missing)).message()),
              HasSubstr(missing + " is missing"));
  EXPECT_FALSE(load([](Tensors& tensors) {
                 tensors.push_back({"base_model.model.lm_head.lora_A.weight", "F32", {0}, {}});
               }).ok());
}

}  // namespace
}  // namespace taopd::testing
