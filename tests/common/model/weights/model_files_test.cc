// Model directories: export and reload, and files that are damaged or wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/io/file.h"
#include "common/io/sha256.h"
#include "common/model/transformer.h"
#include "common/model/weights/tokenizer_files.h"
#include "tests/common/model/paged_steps.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

const DecoderOptions kCpu = {"auto", "cpu", false};

// Changes the tensors of a saved model with `change` and writes them back.
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
    const auto logits_of = [](Decoder* model) {
      PagedSteps steps(model, 2);
      return model->Logits(steps.Step({{0, {1, 2, 3, 4, 5}}, {1, {6, 7}}}));
    };
    EXPECT_TRUE(at::equal(logits_of(read.get()), logits_of(decoder.get())));
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
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM",
                                           "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

TEST(MakeDecoder, InitializesAsTransformers) {
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
  EXPECT_ERROR(MakeDecoder(config, {"float64", "cpu", false}, RandomStream(1)), kInvalidArgument,
               "float64");
  EXPECT_ERROR(MakeDecoder(config, {"float32", "gpu", false}, RandomStream(1)), kInvalidArgument,
               "gpu");
  EXPECT_ERROR(MakeDecoder(config, {"float32", "cuda:99", false}, RandomStream(1)),
               kFailedPrecondition, "cuda:99");
  config.num_key_value_heads = 3;
  EXPECT_ERROR(MakeDecoder(config, kCpu, RandomStream(1)), kInvalidArgument,
               "num_key_value_heads 3");
  config = TinyConfig("LlamaForCausalLM");
  config.hidden_size = 1 << 18;
  config.intermediate_size = 1 << 20;
  config.num_hidden_layers = 4096;
  EXPECT_ERROR(MakeDecoder(config, kCpu, RandomStream(1)), kResourceExhausted, "parameters");
}

class BadFiles : public ::testing::Test {
 protected:
  BadFiles() {
    const absl::Status saved = SaveDecoder(*TinyDecoder("Qwen3ForCausalLM"), dir_.path());
    EXPECT_TRUE(saved.ok()) << saved.ToString();
  }
  void ChangeConfig(const std::function<void(nlohmann::ordered_json&)>& change) {
    auto json = nlohmann::ordered_json::parse(ReadFile(dir_.File("config.json")));
    change(json);
    WriteFile(dir_.File("config.json"), json.dump());
  }
  TempDir dir_;
};

TEST_F(BadFiles, TensorsThatDoNotFitAreNamed) {
  const auto original = ReadTensors(dir_.File("model.safetensors"));
  const std::tuple<const char*, at::Tensor, const char*> cases[] = {
      {"model.layers.0.self_attn.q_proj.bias", at::zeros({32}),
       "unexpected tensors: model.layers.0.self_attn.q_proj.bias"},
      {"model.layers.0.mlp.up_proj.weight", at::zeros({24, 40}),
       "model.layers.0.mlp.up_proj.weight has shape [24, 40], the configuration asks for [40, 24]"},
      {"model.norm.weight", at::ones({24}, at::kLong), "I64"}};
  for (const auto& [name, tensor, message] : cases) {
    RewriteTensors(dir_.path(), [&](auto& tensors) {
      tensors = original;
      tensors[name] = tensor;
    });
    EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), kInvalidArgument, message);
  }
}

TEST_F(BadFiles, ASizeInTheConfigurationThatTheFileDoesNotBearOut) {
  ChangeConfig([](auto& json) { json["num_hidden_layers"] = 4096; });
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), kInvalidArgument,
               "model.layers.2.input_layernorm.weight");
}

// Each message names the directory once, whichever layer found the error.
TEST_F(BadFiles, MessagesNameTheDirectoryOnce) {
  const auto expect_once = [&](absl::StatusCode code, const std::string& part) {
    const absl::Status status = LoadDecoder(dir_.path(), kCpu).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(NumMentions(status, dir_.path()), 1) << status;
    EXPECT_EQ(NumMentions(status, part), 1) << status;
  };
  RewriteTensors(dir_.path(),
                 [](auto& tensors) { tensors.erase("model.layers.1.self_attn.q_norm.weight"); });
  expect_once(kInvalidArgument, "tensors missing: model.layers.1.self_attn.q_norm.weight");
  const std::string weights = ReadFile(dir_.File("model.safetensors"));
  WriteFile(dir_.File("model.safetensors"), weights.substr(0, weights.size() - 4));
  expect_once(kDataLoss, "model.safetensors");
  std::filesystem::remove(dir_.File("model.safetensors"));
  expect_once(kNotFound, "neither model.safetensors");
  WriteFile(dir_.File("config.json"), "{");
  expect_once(kInvalidArgument, "not JSON");
  WriteFile(dir_.File("config.json"), "{}");
  expect_once(kInvalidArgument, "architectures is missing");
  std::filesystem::remove(dir_.File("config.json"));
  expect_once(kNotFound, "cannot open");
}

TEST_F(BadFiles, AStoredHeadIsLeftAsideOnlyWhenTied) {
  RewriteTensors(dir_.path(), [](auto& tensors) {
    tensors["lm_head.weight"] = at::ones({31, 24});
  });
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), kCpu));
  EXPECT_TRUE(decoder->lm_head().is_same(decoder->Parameters()[0].second));
  ChangeConfig([](auto& json) { json["tie_word_embeddings"] = false; });
  ASSERT_OK_AND_ASSIGN(const auto untied, LoadDecoder(dir_.path(), kCpu));
  EXPECT_TRUE(at::equal(untied->lm_head(), at::ones({31, 24})));
}

TEST_F(BadFiles, TypeOfTheStoredWeightsCountsWhereTheConfigurationIsSilent) {
  ChangeConfig([](auto& json) { json.erase("torch_dtype"); });
  RewriteTensors(dir_.path(), [](auto& tensors) {
    for (auto& [name, tensor] : tensors) tensor = tensor.to(at::kBFloat16);
  });
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), kCpu));
  EXPECT_EQ(decoder->dtype(), at::kBFloat16);
}

// Buffers that older versions of transformers stored; their numbers follow from the configuration.
TEST_F(BadFiles, WhatOlderExportsLeftBesideTheWeightsIsAccepted) {
  RewriteTensors(dir_.path(), [](auto& tensors) {
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({4});
    tensors["model.rotary_emb.inv_freq"] = at::ones({4});
  });
  EXPECT_OK(LoadDecoder(dir_.path(), kCpu));
  RewriteTensors(dir_.path(), [](auto& tensors) { tensors["model.inv_freq"] = at::ones({4}); });
  EXPECT_ERROR(LoadDecoder(dir_.path(), kCpu), kInvalidArgument, "model.inv_freq");
}

TEST_F(BadFiles, StoredTypesAreComputedInTheAskedOne) {
  const PackedBatch batch = PackedBatch::FromSequences({{1, 2, 3}, {4, 5}}, at::kCPU);
  const c10::InferenceMode inference;
  ASSERT_OK_AND_ASSIGN(const auto float32, LoadDecoder(dir_.path(), kCpu));
  const at::Tensor expected = float32->Forward(batch);
  for (const at::ScalarType stored : {at::kHalf, at::kBFloat16, at::kFloat}) {
    RewriteTensors(dir_.path(), [&](auto& tensors) {
      for (auto& [name, tensor] : tensors) tensor = tensor.to(stored);
    });
    for (const char* asked : {"float32", "bfloat16", "float16"}) {
      ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), {asked, "cpu", false}));
      EXPECT_EQ(ConfigDtype(decoder->dtype()), asked);
      const at::Tensor hidden_TH = decoder->Forward(batch);
      EXPECT_EQ(hidden_TH.scalar_type(), decoder->dtype());
      EXPECT_LE(MaxAbs(hidden_TH - expected), 0.25) << stored << " " << asked;
    }
  }
  EXPECT_ERROR(LoadDecoder(dir_.path(), {"float16", "cpu", true}), kInvalidArgument,
               "float16 cannot be trained");
}

// A mapped tensor must not be written, so training gets copies.
TEST_F(BadFiles, TrainingDoesNotWriteToTheFile) {
  const std::string before = ReadFile(dir_.File("model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.path(), {"auto", "cpu", true}));
  for (const auto& [name, parameter] : decoder->Parameters()) parameter.detach().add_(1.0);
  EXPECT_EQ(ReadFile(dir_.File("model.safetensors")), before);
}

// Checkpoints and pinned teachers store revisions, so the bytes that are hashed must never change.
TEST(WeightsRevision, HashesConfigurationNamesShapesAndBytesInTheOrderOfTheNames) {
  const auto decoder = TinyDecoder("Qwen3MoeForCausalLM", "bfloat16");
  std::map<std::string, at::Tensor> sorted;
  for (const auto& [name, parameter] : decoder->Parameters()) sorted[name] = parameter;
  ModelConfig config = decoder->config();
  config.dtype = "bfloat16";
  config.raw_json.clear();
  std::string bytes = ModelConfigJson(config);
  for (const auto& [name, parameter] : sorted) {
    bytes += "\n" + name + " BF16 [" + std::to_string(parameter.size(0));
    if (parameter.dim() == 2) bytes += ", " + std::to_string(parameter.size(1));
    bytes += "]\n";
    bytes.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
  }
  ASSERT_OK_AND_ASSIGN(const std::string revision, WeightsRevision(*decoder));
  EXPECT_EQ(revision, Sha256Hex(bytes));
}

TEST(WeightsRevision, IsComputedInTheBackgroundOfADecoderThatIsGone) {
  auto decoder = TinyDecoder("Qwen3ForCausalLM");
  ASSERT_OK_AND_ASSIGN(const std::string revision, WeightsRevision(*decoder));
  auto started = StartWeightsRevision(*decoder);
  decoder.reset();
  ASSERT_OK_AND_ASSIGN(const std::string read, started.get());
  EXPECT_EQ(read, revision);
}

TEST(SaveDecoder, ShardsReadBackToTheSameBits) {
  const TempDir dir;
  const auto decoder = TinyDecoder("Qwen3MoeForCausalLM");
  ASSERT_OK_AND_ASSIGN(const std::string revision, WeightsRevision(*decoder));
  const auto files = [&] { return ListDirectory(dir.path()).value(); };
  // The limit is below the size of the largest tensor, which gets its own file.
  const int64_t kLimits[] = {2000, 20000, kMaxShardBytes, 9000};
  for (const int64_t limit : kLimits) {
    ASSERT_OK(SaveDecoder(*decoder, dir.path(), limit));
    size_t num_shards = 0;
    for (const std::string& name : files()) num_shards += name.ends_with(".safetensors");
    if (limit == kMaxShardBytes) {
      EXPECT_EQ(files(), std::vector<std::string>({"config.json", "model.safetensors"}));
    } else {
      // No shard of the previous export remains.
      char last[64];
      std::snprintf(last, sizeof(last), "model-%05zu-of-%05zu.safetensors", num_shards, num_shards);
      EXPECT_GT(num_shards, 1u);
      EXPECT_TRUE(std::filesystem::exists(dir.File(last)));
      EXPECT_FALSE(std::filesystem::exists(dir.File("model.safetensors")));
      const auto index = nlohmann::json::parse(ReadFile(dir.File("model.safetensors.index.json")));
      EXPECT_EQ(index["weight_map"].size(), decoder->Parameters().size());
      EXPECT_EQ(index["metadata"]["total_size"], 4 * decoder->config().NumParameters());
    }
    ASSERT_OK_AND_ASSIGN(const auto read, LoadDecoder(dir.path(), kCpu));
    ASSERT_OK_AND_ASSIGN(const std::string read_revision, WeightsRevision(*read));
    EXPECT_EQ(read_revision, revision) << limit;
  }
  for (const std::string& name : files()) {
    if (name.starts_with("model-00002")) std::filesystem::remove(dir.File(name));
  }
  EXPECT_ERROR(LoadDecoder(dir.path(), kCpu), kDataLoss, "model-00002-of-");
}

TEST(LoadDecoder, GrowsTheVocabularyByTheMeanOfItsRows) {
  for (const char* architecture : {"Qwen3ForCausalLM", "LlamaForCausalLM"}) {  // tied and not
    const TempDir dir;
    const auto decoder = TinyDecoder(architecture);
    ASSERT_OK(SaveDecoder(*decoder, dir.path()));
    DecoderOptions options = kCpu;
    options.requires_grad = true;
    options.vocabulary = VocabularyChange{40, {33, 39}, 35, std::nullopt};
    ASSERT_OK_AND_ASSIGN(const auto grown, LoadDecoder(dir.path(), options));
    EXPECT_EQ(grown->config().vocab_size, 40);
    for (const auto& [old_rows, new_rows] :
         {std::pair(decoder->Parameters()[0].second, grown->Parameters()[0].second.detach()),
          std::pair(decoder->lm_head(), grown->lm_head().detach())}) {
      EXPECT_EQ(new_rows.size(0), 40);
      EXPECT_TRUE(at::equal(new_rows.narrow(0, 0, 31), old_rows));
      EXPECT_LE(MaxAbs(new_rows.narrow(0, 31, 9) - old_rows.mean(0, true)), 1e-6);
    }
    EXPECT_EQ(grown->config().NumParameters() - decoder->config().NumParameters(),
              9 * 24 * (decoder->config().tie_word_embeddings ? 1 : 2));
    // The export describes the model as it is now, and reads back.
    ASSERT_OK(SaveDecoder(*grown, dir.File("grown")));
    ASSERT_OK_AND_ASSIGN(const auto read, LoadDecoder(dir.File("grown"), kCpu));
    EXPECT_EQ(read->config().eos_token_ids, std::vector<int32_t>({33, 39}));
    EXPECT_EQ(read->config().bos_token_id, 35);
    EXPECT_FALSE(read->config().pad_token_id);
    // The new rows are no longer those of the mapped file.
    options.requires_grad = false;
    ASSERT_OK_AND_ASSIGN(const auto mapped, LoadDecoder(dir.path(), options));
    EXPECT_FALSE(mapped->ReleaserOf(mapped->Parameters()[0].second));
    EXPECT_TRUE(mapped->ReleaserOf(mapped->Parameters()[1].second));
    // A smaller tokenizer leaves the rows unchanged: published vocabularies are padded.
    options.vocabulary = VocabularyChange{20, {3}, std::nullopt, 4};
    ASSERT_OK_AND_ASSIGN(const auto same, LoadDecoder(dir.path(), options));
    EXPECT_EQ(same->config().vocab_size, 31);
    options.vocabulary = VocabularyChange{20, {31}, std::nullopt, std::nullopt};
    EXPECT_ERROR(LoadDecoder(dir.path(), options), kInvalidArgument, "id 31");
  }
}

TEST(LoadDecoder, ReadsNoMoreThanTheMemoryAllows) {
  ModelConfig config = TinyConfig("LlamaForCausalLM");
  config.vocab_size = 1 << 24;
  config.hidden_size = 1 << 18;
  EXPECT_ERROR(CheckWeightsFit(config, at::kCPU, at::kFloat), kResourceExhausted,
               "parameters takes 327");
  EXPECT_OK(CheckWeightsFit(TinyConfig("LlamaForCausalLM"), at::kCPU, at::kFloat));
}

// The end ids of a chat model are in generation_config.json, which LoadDecoder reads.
TEST(TokenizerFiles, SurviveTheDirectoryThatTheyWereReadFrom) {
  const TempDir to;
  absl::StatusOr<TokenizerFiles> files;
  {
    const TempDir from;
    WriteFile(from.File("tokenizer.json"), "{}");
    WriteFile(from.File("generation_config.json"), "{\"eos_token_id\": [2, 3]}");
    WriteFile(from.File("pytorch_model.bin"), "not copied");
    files = ReadTokenizerFiles(from.path());
  }
  ASSERT_OK(files);
  ASSERT_OK(WriteTokenizerFiles(*files, to.path()));
  ASSERT_OK(SaveDecoder(*TinyDecoder("LlamaForCausalLM"), to.path()));
  EXPECT_EQ(ReadFile(to.File("tokenizer.json")), "{}");
  EXPECT_FALSE(std::filesystem::exists(to.File("pytorch_model.bin")));
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(to.path(), kCpu));
  EXPECT_EQ(decoder->config().eos_token_ids, std::vector<int32_t>({2, 3}));
}

// A directory instead of a file represents any file that exists but cannot be read (tests may run
// as root, whom permissions do not stop).
TEST(TokenizerFiles, AFileThatCannotBeReadOrWrittenIsAnError) {
  const TempDir from, to;
  std::filesystem::create_directory(from.File("tokenizer.json"));
  EXPECT_THAT(ReadTokenizerFiles(from.path()).status().message(), HasSubstr("tokenizer.json"));
  std::filesystem::create_directories(to.File("merges.txt/x"));
  EXPECT_THAT(WriteTokenizerFiles({{"merges.txt", "a b"}}, to.path()).message(),
              HasSubstr("merges.txt"));
}

}  // namespace
}  // namespace taopd::testing
