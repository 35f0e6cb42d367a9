// Model directories: export and reload, and files that are not what they should be.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/model/transformer.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

using ::absl::StatusCode;

const DecoderOptions kCpu = {"auto", "cpu", false};

// The tensors of a saved model, changed by `change` and written back.
void RewriteTensors(const std::string& dir,
                    const std::function<void(std::map<std::string, at::Tensor>&)>& change) {
  std::map<std::string, at::Tensor> tensors = ReadTensors(dir + "/model.safetensors");
  change(tensors);
  std::vector<TensorToWrite> to_write;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.contiguous();
    const bool is_long = tensor.scalar_type() == at::kLong;
    to_write.push_back({name,
                        is_long ? "I64" : SafetensorsDtype(tensor.scalar_type()),
                        tensor.sizes().vec(),
                        {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  ASSERT_OK(WriteSafetensors(dir + "/model.safetensors", to_write, {{"format", "pt"}}));
}

class ModelFiles : public ::testing::TestWithParam<const char*> {};

TEST_P(ModelFiles, ExportReadsBackToTheSameBits) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const TempDir dir;
    const auto decoder = TinyDecoder(GetParam(), dtype);
    ASSERT_OK(SaveDecoder(*decoder, dir.File("model")));
    ASSERT_OK_AND_ASSIGN(const auto read, LoadDecoder(dir.File("model"), kCpu));
    EXPECT_EQ(read->dtype(), decoder->dtype());
    const PackedBatch batch = PackedBatch::FromSequences({{1, 2, 3, 4, 5}, {6, 7}}, at::kCPU);
    const c10::InferenceMode inference;
    EXPECT_TRUE(at::equal(at::linear(read->Forward(batch), read->lm_head()),
                          at::linear(decoder->Forward(batch), decoder->lm_head())));
    ASSERT_OK_AND_ASSIGN(const std::string revision, WeightsRevision(*decoder));
    ASSERT_OK_AND_ASSIGN(const std::string read_revision, WeightsRevision(*read));
    EXPECT_EQ(revision.size(), 64u);
    EXPECT_EQ(read_revision, revision);
  }
}

TEST_P(ModelFiles, NumParametersCountsTheTensors) {
  const auto decoder = TinyDecoder(GetParam());
  int64_t num_parameters = 0;
  for (const auto& [name, parameter] : decoder->Parameters()) num_parameters += parameter.numel();
  EXPECT_EQ(decoder->config().NumParameters(), num_parameters);
}

TEST_P(ModelFiles, RandomWeightsDependOnTheSeedAlone) {
  const ModelConfig config = TinyConfig(GetParam());
  const auto revision = [&](uint64_t seed) {
    auto decoder = MakeDecoder(config, {"float32", "cpu", false}, RandomStream(seed));
    return WeightsRevision(**decoder).value();
  };
  EXPECT_EQ(revision(5), revision(5));
  EXPECT_NE(revision(5), revision(6));
}

INSTANTIATE_TEST_SUITE_P(Models, ModelFiles,
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

TEST(MakeDecoder, InitialisesAsTransformers) {
  ModelConfig config = TinyConfig("LlamaForCausalLM");
  config.pad_token_id = 4;
  config.initializer_range = 0.02;
  ASSERT_OK_AND_ASSIGN(const auto decoder,
                       MakeDecoder(config, {"float32", "cpu", true}, RandomStream(1)));
  for (const auto& [name, parameter] : decoder->Parameters()) {
    EXPECT_TRUE(parameter.requires_grad()) << name;
    const at::Tensor value = parameter.detach();
    if (name.find("norm") != std::string::npos) {
      EXPECT_TRUE(at::equal(value, at::ones_like(value))) << name;
    } else if (name.ends_with(".bias")) {
      EXPECT_EQ(MaxAbs(value), 0.0) << name;
    } else {
      EXPECT_NEAR(value.std().item<double>(), 0.02, 0.003) << name;
      EXPECT_NEAR(value.mean().item<double>(), 0.0, 0.003) << name;
    }
    if (name == "model.embed_tokens.weight") {
      EXPECT_EQ(MaxAbs(value[4]), 0.0);
    }
  }
}

TEST(MakeDecoder, RefusesWhatDoesNotFitOrIsNotThere) {
  ModelConfig config = TinyConfig("LlamaForCausalLM");
  EXPECT_ERROR(MakeDecoder(config, {"float16", "cpu", false}, RandomStream(1)),
               StatusCode::kInvalidArgument, "float16");
  EXPECT_ERROR(MakeDecoder(config, {"float32", "gpu", false}, RandomStream(1)),
               StatusCode::kInvalidArgument, "gpu");
  EXPECT_ERROR(MakeDecoder(config, {"float32", "cuda:99", false}, RandomStream(1)),
               StatusCode::kFailedPrecondition, "cuda:99");
  config.num_key_value_heads = 3;
  EXPECT_ERROR(MakeDecoder(config, kCpu, RandomStream(1)), StatusCode::kInvalidArgument,
               "num_key_value_heads 3");
  config = TinyConfig("LlamaForCausalLM");
  config.hidden_size = 1 << 18;
  config.intermediate_size = 1 << 20;
  config.num_hidden_layers = 4096;
  EXPECT_ERROR(MakeDecoder(config, kCpu, RandomStream(1)), StatusCode::kResourceExhausted,
               "parameters");
}

class BadFiles : public ::testing::Test {
 protected:
  BadFiles() {
    const absl::Status saved = SaveDecoder(*TinyDecoder("Qwen3ForCausalLM"), dir_.path());
    EXPECT_TRUE(saved.ok()) << saved.ToString();
  }
  TempDir dir_;
};

TEST_F(BadFiles, MissingTensorsAreNamed) {
  RewriteTensors(dir_.path(),
                 [](auto& tensors) { tensors.erase("model.layers.1.self_attn.q_norm.weight"); });
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kInvalidArgument,
               "tensors missing: model.layers.1.self_attn.q_norm.weight");
}

TEST_F(BadFiles, UnexpectedTensorsAreNamed) {
  RewriteTensors(dir_.path(), [](auto& tensors) {
    tensors["model.layers.0.self_attn.q_proj.bias"] = at::zeros({32});
  });
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kInvalidArgument,
               "unexpected tensors: model.layers.0.self_attn.q_proj.bias");
}

TEST_F(BadFiles, ShapesAreCompared) {
  RewriteTensors(dir_.path(), [](auto& tensors) {
    at::Tensor& weight = tensors["model.layers.0.mlp.up_proj.weight"];
    weight = weight.t();
  });
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kInvalidArgument,
               "model.layers.0.mlp.up_proj.weight has shape [24, 40], the configuration asks for "
               "[40, 24]");
}

TEST_F(BadFiles, TypesThatNothingComputesInAreNamed) {
  RewriteTensors(dir_.path(),
                 [](auto& tensors) { tensors["model.norm.weight"] = at::ones({24}, at::kLong); });
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kInvalidArgument, "I64");
}

TEST_F(BadFiles, ASizeInTheConfigurationThatTheFileDoesNotBearOut) {
  auto json = nlohmann::ordered_json::parse(ReadFile(dir_.File("config.json")));
  json["num_hidden_layers"] = 4096;
  WriteFile(dir_.File("config.json"), json.dump());
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kInvalidArgument,
               "model.layers.2.input_layernorm.weight");
}

TEST_F(BadFiles, MissingOrCutFiles) {
  const std::string weights = ReadFile(dir_.File("model.safetensors"));
  WriteFile(dir_.File("model.safetensors"), weights.substr(0, weights.size() - 4));
  EXPECT_FALSE(LoadDecoder(dir_.path(), kCpu).ok());
  std::filesystem::remove(dir_.File("model.safetensors"));
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kNotFound, "model.safetensors");
  std::filesystem::remove(dir_.File("config.json"));
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), StatusCode::kNotFound, "config.json");
}

TEST_F(BadFiles, AStoredHeadIsLeftAsideOnlyWhenTied) {
  RewriteTensors(dir_.path(), [](auto& tensors) {
    tensors["lm_head.weight"] = at::ones({31, 24});
  });
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), kCpu));
  EXPECT_TRUE(decoder->lm_head().is_same(decoder->Parameters()[0].second));
  auto json = nlohmann::ordered_json::parse(ReadFile(dir_.File("config.json")));
  json["tie_word_embeddings"] = false;
  WriteFile(dir_.File("config.json"), json.dump());
  ASSERT_OK_AND_ASSIGN(const auto untied, LoadDecoder(dir_.path(), kCpu));
  EXPECT_TRUE(at::equal(untied->lm_head(), at::ones({31, 24})));
}

TEST_F(BadFiles, TypeOfTheStoredWeightsCountsWhereTheConfigurationIsSilent) {
  auto json = nlohmann::ordered_json::parse(ReadFile(dir_.File("config.json")));
  json.erase("torch_dtype");
  WriteFile(dir_.File("config.json"), json.dump());
  RewriteTensors(dir_.path(), [](auto& tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  });
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), kCpu));
  EXPECT_EQ(decoder->dtype(), at::kBFloat16);
}

// A mapped tensor must not be written: training gets copies.
TEST_F(BadFiles, TrainingDoesNotWriteToTheFile) {
  const std::string before = ReadFile(dir_.File("model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), {"auto", "cpu", true}));
  for (const auto& [name, parameter] : decoder->Parameters()) parameter.detach().add_(1.0);
  EXPECT_EQ(ReadFile(dir_.File("model.safetensors")), before);
}

TEST(SaveDecoder, CopiesTheTokenizerFiles) {
  const TempDir from, to;
  WriteFile(from.File("tokenizer.json"), "{}");
  WriteFile(from.File("generation_config.json"), "{\"eos_token_id\": [2, 3]}");
  WriteFile(from.File("pytorch_model.bin"), "not copied");
  ASSERT_OK(SaveDecoder(*TinyDecoder("LlamaForCausalLM"), to.path(), from.path()));
  EXPECT_EQ(ReadFile(to.File("tokenizer.json")), "{}");
  EXPECT_FALSE(std::filesystem::exists(to.File("pytorch_model.bin")));
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(to.path(), kCpu));
  EXPECT_EQ(decoder->config().eos_token_ids, std::vector<int32_t>({2, 3}));
}

}  // namespace
}  // namespace taopd::testing
