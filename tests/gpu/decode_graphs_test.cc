// Decode steps as CUDA graphs on a GPU: captured when the engine starts, replayed, and captured
// again after the cache was given back. tests/common/engine/graphs does the same without a GPU.
#include <ATen/detail/CUDAHooksInterface.h>

#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// Products of another number of rows may round differently.
constexpr double kLogProbTolerance = 1e-4;

class GpuDecodeGraphs : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    DecoderOptions options;
    options.device = "cuda";
    options.dtype = "float32";
    auto decoder = MakeDecoder(SmallConfig(), options, RandomStream(5, "tiny model"));
    ASSERT_OK(decoder);
    decoder_ = *std::move(decoder);
  }

  void ExpectAnswersOfEagerSteps(InferenceEngine* engine) {
    std::vector<InferenceRequest> requests;
    for (int64_t i = 0; i < 9; ++i) {
      requests.push_back(Generation(RandomIds(3 + 4 * (i % 5), 7 + i), 12, /*temperature=*/0.0f));
      requests.back().sampling->ignore_eos = true;
    }
    const auto eager = MakeEngine(decoder_);
    const std::vector<Result> expected = RunAll(eager.get(), requests);
    const std::vector<Result> results = RunAll(engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_OK(results[i]);
      const GeneratedTokens &a = *results[i]->generated, &b = *expected[i]->generated;
      EXPECT_EQ(a.ids, b.ids) << "request " << i;
      for (size_t t = 0; t < a.log_probs.size(); ++t) {
        EXPECT_NEAR(a.log_probs[t], b.log_probs[t], kLogProbTolerance);
      }
    }
  }

  std::shared_ptr<Decoder> decoder_;
};

TEST_F(GpuDecodeGraphs, ReplaysGiveTheAnswersOfEagerSteps) {
  EngineOptions options;
  options.max_num_seqs = 12;
  options.cuda_graphs.use = CudaGraphUse::kAlways;
  const auto engine = MakeEngine(decoder_, options);
  EXPECT_EQ(engine->stats().graphs.num_graphs, 5);
  ExpectAnswersOfEagerSteps(engine.get());
  EXPECT_GT(engine->stats().graphs.replayed_steps, 0u);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : decoder_->Parameters()) parameter.mul_(0.8);
  }
  ExpectAnswersOfEagerSteps(engine.get());
  EXPECT_EQ(engine->stats().graphs.num_captures, 1u);
  engine->ReleaseKvCache();
  ExpectAnswersOfEagerSteps(engine.get());
  EXPECT_EQ(engine->stats().graphs.num_captures, 2u);
}

}  // namespace
}  // namespace taopd::testing
