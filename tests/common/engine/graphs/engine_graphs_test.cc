// Tests of the engine with recorded decode steps: when they are recorded, when they are refused,
// and that changed weights and pages are used. tests/common/engine/engine_invariance_test.cc
// compares answers in many arrangements.
#include "tests/common/engine/graphs/eager_answers.h"
#include "tests/common/engine/graphs/function_backend.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/engine/tiny_model.h"
#include "tests/common/model/tiny_models.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

class EngineGraphsTest : public ::testing::Test {
 protected:
  EngineGraphsTest() { UseOneThread(); }

  static EngineOptions WithGraphs() {
    EngineOptions options = {.max_num_seqs = 12};
    options.cuda_graphs.use = CudaGraphUse::kAlways;
    return options;
  }
  absl::StatusOr<std::unique_ptr<InferenceEngine>> Make(const EngineOptions& options) {
    return MakeTorchEngine(decoder_, options, Clock::Real(),
                           std::make_unique<FunctionBackend>(decoder_.get(), &log_));
  }

  BackendLog log_;
  std::shared_ptr<Decoder> decoder_ = MakeTiny();
};

TEST_F(EngineGraphsTest, TheyAreRecordedBeforeTheFirstRequest) {
  ASSERT_OK_AND_ASSIGN(const auto engine, Make(WithGraphs()));
  EXPECT_EQ(engine->stats().graphs.num_graphs, 5);  // 1, 2, 4, 8 and 12
  EXPECT_EQ(engine->stats().graphs.num_captures, 1u);
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 1);
  const GraphStats graphs = engine->stats().graphs;
  EXPECT_EQ(graphs.num_captures, 1u);
  EXPECT_GE(graphs.replayed_steps, 11u);
  EXPECT_GT(graphs.padding_rows, 0u);
  EXPECT_GE(graphs.eager_steps, 1u);  // the prompts
}

TEST_F(EngineGraphsTest, AnUpdateInPlaceIsSeenAndAReleaseRecordsAgain) {
  ASSERT_OK_AND_ASSIGN(const auto engine, Make(WithGraphs()));
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 1);
  {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : decoder_->Parameters()) parameter.mul_(0.8);
  }
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 1);
  EXPECT_EQ(engine->stats().graphs.num_captures, 1u);
  engine->ReleaseKvCache();
  EXPECT_OK(RunAll(engine.get(), {Scoring(RandomIds(5, 1), 1)})[0]);
  EXPECT_EQ(engine->stats().graphs.num_graphs, 0);  // no decode step has needed them
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 2);
  EXPECT_EQ(engine->stats().graphs.num_captures, 2u);
  {
    at::Tensor moved = decoder_->Parameters()[0].second;
    moved.set_data(moved.detach().clone());
  }
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 3);
  EXPECT_EQ(engine->stats().graphs.num_captures, 3u);
  EXPECT_EQ(log_.num_sets, 3);
}

// The pool has all its blocks, and the block after them belongs to no sequence.
TEST_F(EngineGraphsTest, TheScratchBlockIsNotOneOfThePool) {
  EngineOptions options = WithGraphs();
  options.max_model_len = 64;
  const int64_t block_bytes =
      KvPages::BytesPerBlock(decoder_->config(), decoder_->dtype(), KvPages::Layout::kKernel);
  options.kv_cache_bytes = 7 * block_bytes;
  ASSERT_OK_AND_ASSIGN(const auto engine, Make(options));
  EXPECT_EQ(engine->stats().num_kv_blocks, 7);
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 5);
  EXPECT_EQ(engine->stats().num_kv_blocks, 7);
  EXPECT_GT(engine->stats().graphs.padding_rows, 0u);
}

TEST_F(EngineGraphsTest, SizesFollowTheLimits) {
  EngineOptions options = WithGraphs();
  options.max_num_batched_tokens = 9;
  EXPECT_OK(Make(options));
  options.cuda_graphs.max_capture_size = 3;
  EXPECT_OK(Make(options));
  EXPECT_EQ(log_.num_records, (std::vector<int64_t>{5, 3}));  // 1 2 4 8 9, and 1 2 3
  options.cuda_graphs.max_seq_len = 6;
  ASSERT_OK_AND_ASSIGN(const auto engine, Make(options));
  std::vector<InferenceRequest> requests = {Generation({1, 2, 3, 4}, 10)};
  requests[0].sampling->ignore_eos = true;
  EXPECT_OK(RunAll(engine.get(), requests)[0]);
  // Rows 4 and 5 are replayed, and rows 6 to 12 and the prompt are eager.
  EXPECT_EQ(engine->stats().graphs.replayed_steps, 2u);
  EXPECT_EQ(engine->stats().graphs.eager_steps, 8u);
}

TEST_F(EngineGraphsTest, WhereThereCanBeNoneTheyAreRefused) {
  EngineOptions options = WithGraphs();
  EXPECT_ERROR(MakeTorchEngine(decoder_, options), kInvalidArgument,
               "CUDA graphs need a CUDA device, but the model is on a CPU");
  options.kv_cache_bytes = 0;
  EXPECT_ERROR(Make(options), kInvalidArgument, "only scores");
  options = WithGraphs();
  options.tensor_parallel_size = 2;
  EXPECT_ERROR(Make(options), kInvalidArgument, "tensor_parallel_size 2: must be 1");
  options = WithGraphs();
  options.cuda_graphs.max_capture_size = 13;
  EXPECT_ERROR(Make(options), kInvalidArgument,
               "max_cudagraph_capture_size 13 exceeds max_num_seqs 12");
  options = WithGraphs();
  decoder_ = MakeTiny(SmallConfig(), /*requires_grad=*/false, "float16");
  EXPECT_ERROR(Make(options), kInvalidArgument, "this model has float16");
  EXPECT_EQ(log_.num_sets, 0);
}

TEST_F(EngineGraphsTest, AutoDoesWithoutWhereTheyAreImpossibleOrFail) {
  EngineOptions options = WithGraphs();
  options.cuda_graphs.use = CudaGraphUse::kAuto;
  ASSERT_OK_AND_ASSIGN(const auto on_cpu, MakeTorchEngine(decoder_, options));
  EXPECT_EQ(on_cpu->stats().graphs.num_captures, 0u);
  ASSERT_OK_AND_ASSIGN(const auto possible, Make(options));
  EXPECT_EQ(possible->stats().graphs.num_captures, 1u);
  log_.fails_after = 1;
  ASSERT_OK_AND_ASSIGN(const auto failed, Make(options));
  ExpectAnswersOfEagerSteps(failed.get(), decoder_, 5);
  EXPECT_EQ(failed->stats().graphs.replayed_steps, 0u);
  // A size asks for graphs.
  options.cuda_graphs.max_capture_size = 4;
  EXPECT_ERROR(MakeTorchEngine(decoder_, options), kInvalidArgument, "need a CUDA device");
}

TEST_F(EngineGraphsTest, AFailureWhileRecordingIsTheEnginesError) {
  log_.fails_after = 1;
  EXPECT_ERROR(Make(WithGraphs()), kInternal, "this cannot be recorded");
  // A later failure costs the graphs, but no answer.
  log_.fails_after = -1;
  ASSERT_OK_AND_ASSIGN(const auto engine, Make(WithGraphs()));
  engine->ReleaseKvCache();
  log_.fails_after = 0;
  ExpectAnswersOfEagerSteps(engine.get(), decoder_, 7);
  EXPECT_EQ(engine->stats().graphs.replayed_steps, 0u);
  EXPECT_EQ(engine->stats().graphs.num_graphs, 0);
}

}  // namespace
}  // namespace taopd::testing
