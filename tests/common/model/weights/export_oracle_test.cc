// The files of SaveDecoder, loaded by transformers and by PEFT themselves: no missing and no
// unexpected tensor, and the same logits. Needs the Python of TAOPD_ORACLE_PYTHON (tests/run -L
// oracle installs it).
#include <gtest/gtest.h>

#include "tests/common/model/tiny_models.h"
#include "tests/support/process.h"

namespace taopd::testing {
namespace {

constexpr int64_t kBatch = 3, kLength = 29;

class ExportOracle : public ::testing::TestWithParam<const char*> {
 protected:
  // Returns a batch, and writes it for run_export.py.
  PackedBatch WriteInput(int64_t vocab_size) {
    RandomStream random(21);
    std::vector<std::vector<int32_t>> sequences;
    for (int64_t b = 0; b < kBatch; ++b) {
      sequences.push_back(RandomTokens(kLength, vocab_size, &random));
    }
    PackedBatch batch = PackedBatch::FromSequences(sequences, at::kCPU);
    const at::Tensor ids = batch.token_ids_T;
    EXPECT_OK(
        WriteSafetensors(dir_.File("input.safetensors"),
                         {{"token_ids",
                           "I64",
                           {kBatch, kLength},
                           {static_cast<const std::byte*>(ids.const_data_ptr()), ids.nbytes()}}}));
    return batch;
  }
  // Compares the decoder's logits with those that Python computes with the files of `model_dir`.
  void ExpectSameLogits(const char* python, const std::string& model_dir, Decoder* decoder,
                        const PackedBatch& batch) {
    std::string output;
    ASSERT_EQ(RunProgram({python, SourcePath("tests/common/model/golden/run_export.py"), model_dir,
                          dir_.File("input.safetensors"), dir_.File("output.safetensors")},
                         dir_.File("python.log"), &output, absl::Seconds(180)),
              0)
        << output;
    const c10::InferenceMode inference;
    const at::Tensor ours = at::linear(decoder->Forward(batch), decoder->lm_head());
    const at::Tensor theirs = ReadTensors(dir_.File("output.safetensors")).at("logits");
    // float32 roundings of two layers, as in decoder_golden_test.
    EXPECT_LE(MaxAbs(theirs.view_as(ours) - ours), 2e-5 * (1.0 + MaxAbs(ours)));
  }

  const TempDir dir_;
};

TEST_P(ExportOracle, TransformersLoadsTheExportAndComputesTheSame) {
  const char* python = std::getenv("TAOPD_ORACLE_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TAOPD_ORACLE_PYTHON names no Python with transformers";
  const auto decoder = TinyDecoder(GetParam());
  const PackedBatch batch = WriteInput(decoder->config().vocab_size);
  for (const int64_t max_shard_bytes : {kMaxShardBytes, int64_t{8000}}) {
    const std::string model_dir = dir_.File(Concat("model-", max_shard_bytes));
    ASSERT_OK(SaveDecoder(*decoder, model_dir, max_shard_bytes));
    ExpectSameLogits(python, model_dir, decoder.get(), batch);
  }
}

TEST_P(ExportOracle, PeftLoadsTheAdapterAndComputesTheSame) {
  const char* python = std::getenv("TAOPD_ORACLE_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TAOPD_ORACLE_PYTHON names no Python with peft";
  const auto base = TinyDecoder(GetParam());
  ASSERT_OK(SaveDecoder(*base, dir_.File("base")));
  DecoderOptions options = {"float32", "cpu", true};
  options.lora.emplace();
  options.lora->config.rank = 3;
  options.lora->config.alpha = 5;
  options.lora->config.target_modules = {kAllLinear};
  options.lora->config.base_model = dir_.File("base");
  ASSERT_OK_AND_ASSIGN(const auto decoder, LoadDecoder(dir_.File("base"), options));
  {
    const at::NoGradGuard no_grad;
    for (auto& [name, matrix] : decoder->TrainedParameters()) {
      at::Tensor(matrix).add_(0.1);  // B is zero in the beginning
    }
  }
  ASSERT_OK(SaveDecoder(*decoder, dir_.File("adapter")));
  ExpectSameLogits(python, dir_.File("adapter"), decoder.get(),
                   WriteInput(decoder->config().vocab_size));
}

INSTANTIATE_TEST_SUITE_P(Models, ExportOracle,
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM",
                                           "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace taopd::testing
