// The files of SaveDecoder, loaded by transformers itself: no missing and no unexpected tensor, and
// the same logits. Needs the Python of TAOPD_ORACLE_PYTHON (tests/run -L oracle installs it).
#include <gtest/gtest.h>

#include "tests/common/model/tiny_models.h"
#include "tests/support/process.h"

namespace taopd::testing {
namespace {

constexpr int64_t kBatch = 3, kLength = 29;

class ExportOracle : public ::testing::TestWithParam<const char*> {};

TEST_P(ExportOracle, TransformersLoadsTheExportAndComputesTheSame) {
  const char* python = std::getenv("TAOPD_ORACLE_PYTHON");
  if (python == nullptr) GTEST_SKIP() << "TAOPD_ORACLE_PYTHON names no Python with transformers";
  const TempDir dir;
  const auto decoder = TinyDecoder(GetParam());
  RandomStream random(21);
  std::vector<std::vector<int32_t>> sequences;
  for (int64_t b = 0; b < kBatch; ++b) {
    sequences.push_back(RandomTokens(kLength, decoder->config().vocab_size, &random));
  }
  const PackedBatch batch = PackedBatch::FromSequences(sequences, at::kCPU);
  const at::Tensor ids = batch.token_ids_T;
  ASSERT_OK(
      WriteSafetensors(dir.File("input.safetensors"),
                       {{"token_ids",
                         "I64",
                         {kBatch, kLength},
                         {static_cast<const std::byte*>(ids.const_data_ptr()), ids.nbytes()}}}));
  for (const int64_t max_shard_bytes : {kMaxShardBytes, int64_t{8000}}) {
    const std::string model_dir = dir.File(Concat("model-", max_shard_bytes));
    ASSERT_OK(SaveDecoder(*decoder, model_dir, max_shard_bytes));
    std::string output;
    ASSERT_EQ(RunProgram({python, SourcePath("tests/common/model/golden/run_export.py"), model_dir,
                          dir.File("input.safetensors"), dir.File("output.safetensors")},
                         dir.File("python.log"), &output, absl::Seconds(180)),
              0)
        << output;
    const c10::InferenceMode inference;
    const at::Tensor ours = at::linear(decoder->Forward(batch), decoder->lm_head());
    const at::Tensor theirs = ReadTensors(dir.File("output.safetensors")).at("logits");
    // float32 roundings of two layers, as in decoder_golden_test.
    EXPECT_LE(MaxAbs(theirs.view_as(ours) - ours), 2e-5 * (1.0 + MaxAbs(ours)));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExportOracle,
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM",
                                           "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace taopd::testing
