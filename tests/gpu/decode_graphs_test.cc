// Decode steps as CUDA graphs on a GPU: captured when the engine starts, replayed, and captured
// again after the cache was given back. tests/common/engine/graphs does the same without a GPU.
#include "tests/common/engine/graphs/eager_answers.h"
#include "tests/common/engine/tiny_model.h"

namespace taopd::testing {
namespace {

// Products of another number of rows may round differently.
constexpr float kLogProbTolerance = 1e-4f;

TEST(GpuDecodeGraphs, ReplaysGiveTheAnswersOfEagerSteps) {
  const auto decoder =
      MakeTiny(SmallConfig(), /*requires_grad=*/false, "float32", /*device=*/"cuda");
  EngineOptions options;
  options.max_num_seqs = 12;
  options.cuda_graphs.use = CudaGraphUse::kAlways;
  const auto engine = MakeEngine(decoder, options);
  const auto expect_answers = [&] {
    ExpectAnswersOfEagerSteps(engine.get(), decoder, 7, /*temperature=*/0, kLogProbTolerance);
  };
  EXPECT_EQ(engine->stats().graphs.num_graphs, 5);
  expect_answers();
  EXPECT_GT(engine->stats().graphs.replayed_steps, 0u);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : decoder->Parameters()) parameter.mul_(0.8);
  }
  expect_answers();
  EXPECT_EQ(engine->stats().graphs.num_captures, 1u);
  engine->ReleaseKvCache();
  expect_answers();
  EXPECT_EQ(engine->stats().graphs.num_captures, 2u);
}

}  // namespace
}  // namespace taopd::testing
