// Models with adapters against PEFT (golden/make_lora_goldens.py): forward, gradients, merged
// weights and files. And against models with merged weights, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <nlohmann/json.hpp>

#include "common/model/weights/lora_weights.h"
#include "tests/common/model/paged_steps.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

// Float32 roundings of two layers, relative to the largest number.
constexpr double kTolerance = 1e-5;

// An adapter of the golden files whose configuration names the base where it is.
struct LoraCase {
  explicit LoraCase(const std::string& name) {
    UseOneThread();
    const std::string from = SourcePath("tests/common/model/golden/lora_" + name);
    auto json = nlohmann::json::parse(ReadFile(from + "/adapter_config.json"));
    base_dir = SourcePath("tests/common/model/golden/" +
                          json["base_model_name_or_path"].get<std::string>());
    json["base_model_name_or_path"] = base_dir;
    WriteFile(dir.File("adapter_config.json"), json.dump());
    std::filesystem::copy_file(from + "/adapter_model.safetensors",
                               dir.File("adapter_model.safetensors"));
    golden = ReadTensors(from + "/golden.safetensors");
    stored = ReadTensors(from + "/adapter_model.safetensors");
    for (const auto& [name, value] : stored) {
      if (!name.ends_with("lora_A.weight") && !name.ends_with("lora_B.weight")) saved.insert(name);
    }
    const int64_t* cu_seqlens = golden.at("cu_seqlens").const_data_ptr<int64_t>();
    batch = {
        golden.at("token_ids"), {cu_seqlens, cu_seqlens + golden.at("cu_seqlens").numel()}, {}};
  }
  // Loads the base with the adapter, to be trained.
  std::unique_ptr<Decoder> Trained(const std::string& dtype = "float32") const {
    DecoderOptions options = {dtype, "cpu", true};
    options.lora.emplace();
    return LoadDecoder(dir.path(), options).value();
  }

  size_t NumFactors() const { return stored.size() - saved.size(); }

  TempDir dir;
  std::string base_dir;
  std::set<std::string> saved;  // the names of the tensors of modules_to_save
  std::map<std::string, at::Tensor> golden, stored;
  PackedBatch batch;
};

void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_LE(MaxAbs(actual.detach() - expected), kTolerance * (1.0 + MaxAbs(expected))) << what;
}

class LoraGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(LoraGolden, AnAdapterIsMergedWhenItIsLoaded) {
  const LoraCase test_case(GetParam());
  DecoderOptions beside = {"float32", "cpu", false};
  beside.merged_adapter_dir = test_case.dir.path();
  for (const bool by_its_directory : {true, false}) {
    auto loaded = by_its_directory ? LoadDecoder(test_case.dir.path(), {"float32", "cpu", false})
                                   : LoadDecoder(test_case.base_dir, beside);
    ASSERT_OK_AND_ASSIGN(const auto decoder, std::move(loaded));
    EXPECT_EQ(decoder->lora(), nullptr);
    {
      const c10::InferenceMode inference;
      ExpectClose(at::linear(decoder->Forward(test_case.batch), decoder->lm_head()),
                  test_case.golden.at("logits"), "logits");
    }
    std::map<std::string, at::Tensor> parameters;
    for (const auto& [name, parameter] : decoder->Parameters()) parameters[name] = parameter;
    parameters["lm_head.weight"] = decoder->lm_head();
    size_t num_merged = 0;
    for (const auto& [name, value] : test_case.golden) {
      if (!name.starts_with("merged.")) continue;
      ++num_merged;
      ExpectClose(parameters.at(name.substr(7)), value, name);
    }
    EXPECT_EQ(num_merged, test_case.NumFactors() / 2 + test_case.saved.size());
    // The revision is that of the merged weights, also if they are hashed from the files.
    ASSERT_OK_AND_ASSIGN(const std::string revision, WeightsRevision(*decoder));
    ASSERT_OK_AND_ASSIGN(
        const std::string stored,
        StartStoredRevision(test_case.base_dir, "float32", test_case.dir.path()).get());
    EXPECT_EQ(revision, stored);
    ASSERT_OK_AND_ASSIGN(const std::string base,
                         StartStoredRevision(test_case.base_dir, "float32", "").get());
    EXPECT_NE(revision, base);
  }
}

TEST_P(LoraGolden, OnlyTheAdaptersAndWhatTheySaveHaveGradients) {
  const LoraCase test_case(GetParam());
  const auto decoder = test_case.Trained();
  const at::Tensor logits_TV = at::linear(decoder->Forward(test_case.batch), decoder->lm_head());
  ExpectClose(logits_TV, test_case.golden.at("logits"), "logits");
  (logits_TV * test_case.golden.at("loss_weights")).sum().backward();
  for (const auto& [name, parameter] : decoder->Parameters()) {
    const bool is_saved = test_case.saved.contains("base_model.model." + name);
    EXPECT_EQ(parameter.requires_grad(), is_saved) << name;
    EXPECT_EQ(parameter.grad().defined(), is_saved) << name;
  }
  const auto trained = decoder->TrainedParameters();
  // A tied head is stored, and is the embedding.
  const size_t num_tied = decoder->lora()->ensure_weight_tying ? 1 : 0;
  EXPECT_EQ(num_tied, std::string(GetParam()) == "saved_qwen2_tied" ? 1 : 0);
  EXPECT_EQ(trained.size(), test_case.stored.size() - num_tied);
  for (const auto& [name, parameter] : trained) {
    ASSERT_TRUE(test_case.golden.contains("grad." + name)) << name;
    ExpectClose(parameter.grad(), test_case.golden.at("grad." + name), name);
  }
}

TEST_P(LoraGolden, WritesWhatItReads) {
  const LoraCase test_case(GetParam());
  const auto decoder = test_case.Trained();
  // Whatever is trained, the revision of the base is that of its files.
  ASSERT_OK_AND_ASSIGN(const std::string revision, BaseRevision(*decoder));
  ASSERT_OK_AND_ASSIGN(const std::string base,
                       StartStoredRevision(test_case.base_dir, "float32", "").get());
  EXPECT_EQ(revision, base);
  const TempDir out;
  ASSERT_OK(SaveDecoder(*decoder, out.File("adapter")));
  const auto written = ReadTensors(out.File("adapter/adapter_model.safetensors"));
  ASSERT_EQ(written.size(), test_case.stored.size());
  for (const auto& [name, value] : test_case.stored) {
    ASSERT_TRUE(written.contains(name)) << name;
    EXPECT_TRUE(at::equal(written.at(name), value)) << name;
  }
  ASSERT_OK_AND_ASSIGN(const LoraConfig read, ReadLoraConfig(out.File("adapter")));
  EXPECT_EQ(read.rank, decoder->lora()->rank);
  EXPECT_EQ(read.Scale(), decoder->lora()->Scale());
  EXPECT_THAT(read.target_modules,
              ::testing::UnorderedElementsAreArray(decoder->lora()->target_modules));
  EXPECT_EQ(read.base_model, test_case.base_dir);
  EXPECT_EQ(read.modules_to_save, decoder->lora()->modules_to_save);
  EXPECT_EQ(read.modules_to_save.empty(), test_case.saved.empty());
  EXPECT_EQ(read.ensure_weight_tying, decoder->lora()->ensure_weight_tying);
}

// The rows of the pack in generation, one token at a time.
at::Tensor GeneratedRows(Decoder* decoder, const PackedBatch& batch) {
  PagedSteps steps(decoder, 16);
  const int64_t* ids = batch.token_ids_T.const_data_ptr<int64_t>();
  std::vector<at::Tensor> rows;
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int64_t t = batch.cu_seqlens[s]; t < batch.cu_seqlens[s + 1]; ++t) {
      rows.push_back(steps.Step({{s, {static_cast<int32_t>(ids[t])}}}));
    }
  }
  return at::cat(rows);
}

// A model with adapters and one whose weights were merged have the same bits in generation and in
// the training pass, whether the weights are packed for the pass or for generation. (The two passes
// differ from each other in the sums of attention, with adapters and without.)
TEST_P(LoraGolden, RowsHaveTheBitsOfMergedWeightsInGenerationAndTraining) {
  const LoraCase test_case(GetParam());
  for (const char* dtype : {"float32", "bfloat16"}) {
    SCOPED_TRACE(dtype);
    const auto decoder = test_case.Trained(dtype);
    at::Tensor before;
    for (const bool is_updated : {false, true}) {
      SCOPED_TRACE(is_updated);
      if (is_updated) {
        const uint64_t version = decoder->weight_version();
        for (const auto& [name, matrix] : decoder->TrainedParameters()) matrix.detach().mul_(-1.5);
        EXPECT_GT(decoder->weight_version(), version);
      }
      const TempDir dir;
      ASSERT_OK(SaveDecoder(*decoder, dir.path()));
      ASSERT_OK_AND_ASSIGN(const auto merged, LoadDecoder(dir.path(), {dtype, "cpu", true}));
      const at::Tensor expected = merged->Forward(test_case.batch).detach();
      EXPECT_TRUE(at::equal(decoder->Forward(test_case.batch).detach(), expected));
      EXPECT_TRUE(at::equal(GeneratedRows(decoder.get(), test_case.batch),
                            GeneratedRows(merged.get(), test_case.batch)));
      // Now the training pass reads the packed copy of generation.
      EXPECT_TRUE(at::equal(decoder->Forward(test_case.batch).detach(), expected));
      if (is_updated) {
        EXPECT_FALSE(at::equal(before, expected));
      }
      before = expected;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LoraGolden,
                         ::testing::Values("qwen3_untied", "llama_bias", "qwen3_moe", "qwen2_tied",
                                           "saved_qwen2_tied", "saved_qwen3_untied"),
                         [](const auto& info) { return std::string(info.param); });

// Two decoders of a base share what is frozen and nothing else.
TEST_P(LoraGolden, ACopyHasItsOwnTrainedValues) {
  const LoraCase test_case(GetParam());
  const auto decoder = test_case.Trained();
  const auto copy = decoder->WithOwnAdapters();
  const at::NoGradGuard no_grad;
  const auto logits = [&](Decoder* of) {
    return at::linear(of->Forward(test_case.batch), of->lm_head());
  };
  const at::Tensor before = logits(decoder.get());
  EXPECT_TRUE(at::equal(logits(copy.get()), before));
  const auto from = decoder->TrainedParameters(), to = copy->TrainedParameters();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(to[i].first, from[i].first);
    EXPECT_FALSE(to[i].second.requires_grad()) << to[i].first;
    const at::Tensor value = from[i].second.clone();
    at::Tensor(from[i].second).mul_(-1.5);
    EXPECT_FALSE(at::equal(logits(decoder.get()), before)) << from[i].first;
    EXPECT_TRUE(at::equal(logits(copy.get()), before)) << from[i].first;
    at::Tensor(to[i].second).copy_(from[i].second);
    EXPECT_TRUE(at::equal(logits(copy.get()), logits(decoder.get()))) << from[i].first;
    for (const at::Tensor& changed : {from[i].second, to[i].second})
      at::Tensor(changed).copy_(value);
  }
}

TEST(LoraDecoder, ANewAdapterChangesNothingAndDependsOnTheSeedAlone) {
  UseOneThread();
  const std::string base_dir = SourcePath("tests/common/model/golden/qwen3_untied");
  const auto load = [&](uint64_t seed, LoraInit init) {
    DecoderOptions options = {"float32", "cpu", true};
    options.lora.emplace();
    options.lora->config.rank = 4;
    options.lora->config.alpha = 8;
    options.lora->config.target_modules = {kAllLinear};
    options.lora->config.init = init;
    options.lora->seed = seed;
    return LoadDecoder(base_dir, options).value();
  };
  const auto one = load(1, LoraInit::kDefault), again = load(1, LoraInit::kDefault),
             other = load(2, LoraInit::kDefault), gaussian = load(1, LoraInit::kGaussian);
  const PackedBatch batch = PackedBatch::FromSequences({{3, 1, 4, 1, 5}}, at::kCPU);
  ASSERT_OK_AND_ASSIGN(const auto base, LoadDecoder(base_dir, {"float32", "cpu", true}));
  EXPECT_TRUE(at::equal(one->Forward(batch), base->Forward(batch)));
  const auto a = one->TrainedParameters(), b = again->TrainedParameters(),
             c = other->TrainedParameters(), d = gaussian->TrainedParameters();
  ASSERT_EQ(a.size(), size_t{28});  // two of each of 7 layers of 2 blocks
  int64_t num_values = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto& [name, matrix] = a[i];
    num_values += matrix.numel();
    EXPECT_TRUE(at::equal(matrix, b[i].second)) << name;
    if (name.ends_with("lora_B.weight")) {
      EXPECT_EQ(MaxAbs(matrix.detach()), 0) << name;
      continue;
    }
    EXPECT_FALSE(at::equal(matrix, c[i].second)) << name;
    const double bound = 1 / std::sqrt(static_cast<double>(matrix.size(1)));
    EXPECT_LE(MaxAbs(matrix.detach()), bound) << name;
    EXPECT_GT(MaxAbs(matrix.detach()), 0.8 * bound) << name;  // of at least 64 uniform numbers
    EXPECT_NEAR(d[i].second.detach().std().item<double>(), 0.25, 0.1) << name;
  }
  EXPECT_EQ(CountLoraParameters(one->config(), *one->lora()).total(), num_values);
}

}  // namespace
}  // namespace taopd::testing
