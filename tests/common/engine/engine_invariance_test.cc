// A request's answer has the same bytes whatever the other requests and their order, the size of
// steps and thus of chunks, the prefix cache, preemption and the number of threads, and whether or
// not decode steps are replayed.
//
// TAOPD_NUM_ARRANGEMENTS and TAOPD_NUM_REQUESTS make the test larger.
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "common/engine/torch_engine.h"
#include "tests/common/engine/graphs/function_backend.h"
#include "tests/common/engine/result_box.h"
#include "tests/common/engine/same_scores.h"
#include "tests/common/model/tiny_models.h"
#include "tests/support/process.h"

namespace taopd::testing {
namespace {

constexpr int64_t kMaxLen = 160;
constexpr int32_t kVocabulary = 31;

class RequestMaker {
 public:
  explicit RequestMaker(uint64_t seed) : random_(seed, "invariance") {
    for (auto& prefix : prefixes_) prefix = Ids(20 + Below(80));
  }

  InferenceRequest Next() {
    InferenceRequest request;
    // Half of the prompts have a common prefix, and some are equal.
    if (Below(2) == 0) {
      request.token_ids = prefixes_[Below(static_cast<int64_t>(prefixes_.size()))];
      if (Below(3) != 0) Append(Ids(1 + Below(20)), &request.token_ids);
    } else {
      request.token_ids = Ids(2 + Below(100));
    }
    const int64_t kind = Below(3);
    if (kind != 0) AddScore(&request);
    if (kind != 1) AddSampling(&request);
    return request;
  }

 private:
  int64_t Below(int64_t n) { return static_cast<int64_t>(random_.NextBelow(n)); }
  std::vector<int32_t> Ids(int64_t num) { return RandomTokens(num, kVocabulary, &random_); }
  static void Append(const std::vector<int32_t>& from, std::vector<int32_t>* to) {
    to->insert(to->end(), from.begin(), from.end());
  }

  void AddScore(InferenceRequest* request) {
    ScoreParams score;
    const auto num_tokens = static_cast<int64_t>(request->token_ids.size());
    score.start = 1 + Below(num_tokens - 1);
    score.top_k = static_cast<int32_t>(Below(6));
    score.temperature = Below(2) == 0 ? 1.0f : 0.7f;
    score.entropy = Below(2) == 0;
    score.rank = Below(2) == 0;
    score.support_stats = Below(2) == 0;
    score.dense = Below(8) == 0;
    score.num_candidates = static_cast<int32_t>(Below(2) * 3);
    score.candidate_ids = Ids((num_tokens - score.start) * score.num_candidates);
    request->score = score;
  }

  void AddSampling(InferenceRequest* request) {
    SamplingParams sampling;
    sampling.max_new_tokens = 1 + Below(30);
    sampling.temperature = Below(3) == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(Below(4));
    sampling.top_p = Below(2) == 0 ? 1.0f : 0.9f;
    sampling.top_k = Below(3) == 0 ? 5 : 0;
    sampling.min_p = Below(4) == 0 ? 0.02f : 0.0f;
    if (Below(4) == 0) sampling.repetition_penalty = 1.2f;
    if (Below(4) == 0) sampling.frequency_penalty = 0.3f;
    sampling.seed = random_.NextU64();
    sampling.num_log_probs = static_cast<int32_t>(Below(3));
    sampling.raw_log_probs = Below(2) == 0;
    request->sampling = sampling;
  }

  RandomStream random_;
  std::array<std::vector<int32_t>, 4> prefixes_;
};

void ExpectSameResult(const Result& value, const Result& expected, const std::string& what) {
  ASSERT_OK(value);
  ASSERT_OK(expected);
  ASSERT_EQ(value->score.has_value(), expected->score.has_value());
  if (value->score) ExpectSameScores(*value->score, *expected->score, what);
  ASSERT_EQ(value->generated.has_value(), expected->generated.has_value());
  if (!value->generated) return;
  const GeneratedTokens &a = *value->generated, &b = *expected->generated;
  EXPECT_EQ(a.ids, b.ids) << what;
  EXPECT_EQ(a.finish, b.finish) << what;
  ExpectSameBytes(a.log_probs, b.log_probs, what + " behavior");
  ExpectSameBytes(a.raw_log_probs, b.raw_log_probs, what + " raw");
  ExpectSameBytes(a.top_ids, b.top_ids, what + " top_ids");
  ExpectSameBytes(a.top_log_probs, b.top_log_probs, what + " top_log_probs");
}

// Submits the requests in the given order, in batches of `batch_size` without waiting in between.
// Returns the results in the order of the requests.
std::vector<Result> RunInOrder(InferenceEngine* engine,
                               const std::vector<InferenceRequest>& requests,
                               const std::vector<size_t>& order, size_t batch_size) {
  ResultBox box;
  for (size_t begin = 0; begin < order.size(); begin += batch_size) {
    RequestBatch batch;
    for (size_t i = begin; i < std::min(order.size(), begin + batch_size); ++i) {
      batch.emplace_back(requests[order[i]], box.Done(static_cast<int>(order[i])));
    }
    engine->SubmitBatch(std::move(batch));
  }
  box.WaitFor(order.size());
  std::vector<Result> results;
  for (size_t i = 0; i < order.size(); ++i) results.push_back(box.Wait(static_cast<int>(i)));
  return results;
}

class EngineInvarianceTest : public ::testing::TestWithParam<TinyKind> {
 protected:
  ~EngineInvarianceTest() override { at::set_num_threads(1); }

  std::unique_ptr<InferenceEngine> Make(const EngineOptions& options) {
    return MakeTorchEngine(decoder_, options, Clock::Real(),
                           std::make_unique<FunctionBackend>(decoder_.get(), &backend_log_))
        .value();
  }

  BackendLog backend_log_;
  std::shared_ptr<Decoder> decoder_ = TinyDecoder(GetParam().architecture, GetParam().dtype);
};

TEST_P(EngineInvarianceTest, AnswersDependOnTheRequestAlone) {
  const int64_t num_requests = NumberFromEnvironment("TAOPD_NUM_REQUESTS", 60);
  const int64_t num_arrangements = NumberFromEnvironment("TAOPD_NUM_ARRANGEMENTS", 4);
  RequestMaker maker(1);
  std::vector<InferenceRequest> requests;
  for (int64_t i = 0; i < num_requests; ++i) requests.push_back(maker.Next());
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), 0);

  // Run each request alone.
  EngineOptions options = {.max_model_len = kMaxLen, .prefix_caching = false};
  std::vector<Result> expected;
  {
    const auto engine = Make(options);
    for (size_t i = 0; i < requests.size(); ++i) {
      expected.push_back(RunAll(engine.get(), {requests[i]})[0]);
    }
  }
  const int64_t block_bytes =
      KvPages::BytesPerBlock(decoder_->config(), decoder_->dtype(), KvPages::Layout::kKernel);
  RandomStream random(2, "arrangements");
  const bool has_graphs = decoder_->config().moe.num_experts == 0;
  uint64_t num_preempted = 0, num_hits = 0;
  GraphStats graphs;
  for (int64_t arrangement = 0; arrangement < num_arrangements; ++arrangement) {
    random.Shuffle(&order);
    constexpr int64_t kBudgets[] = {7, 33, 100, 512, 8192};
    options.max_num_batched_tokens = kBudgets[random.NextBelow(5)];
    options.max_num_seqs = 1 + static_cast<int64_t>(random.NextBelow(64));
    options.prefix_caching = arrangement % 2 == 0;
    // The pools range from one that holds one sequence to one that holds them all.
    constexpr int64_t kBlocks[] = {5, 9, 30, 2000};
    options.kv_cache_bytes = kBlocks[arrangement % 4] * block_bytes;
    const bool captures = has_graphs && (arrangement % 4 == 1 || arrangement % 4 == 2);
    if (captures) options.cuda_graphs.use = CudaGraphUse::kAlways;
    options.cuda_graphs.max_capture_size =
        1 + static_cast<int64_t>(random.NextBelow(static_cast<uint64_t>(options.max_num_seqs)));
    options.cuda_graphs.max_seq_len = 60 + static_cast<int64_t>(random.NextBelow(2)) * kMaxLen;
    const int num_threads = 1 + static_cast<int>(random.NextBelow(4));
    at::set_num_threads(num_threads);
    const size_t batch_size = 1 + random.NextBelow(requests.size());
    SCOPED_TRACE(Concat("arrangement ", arrangement, ": ", options.max_num_batched_tokens,
                        " rows a step, ", options.kv_cache_bytes / block_bytes, " blocks, ",
                        num_threads, " threads", captures ? ", decode steps recorded" : ""));
    const auto engine = Make(options);
    const auto results = RunInOrder(engine.get(), requests, order, batch_size);
    for (size_t i = 0; i < requests.size(); ++i) {
      ExpectSameResult(results[i], expected[i], Concat("request ", i));
    }
    num_preempted += engine->stats().num_preempted;
    num_hits += engine->stats().prefix_hit_tokens;
    graphs.replayed_steps += engine->stats().graphs.replayed_steps;
    graphs.padding_rows += engine->stats().graphs.padding_rows;
    EXPECT_EQ(engine->stats().kv_blocks_in_use, 0);
  }
  EXPECT_GT(num_preempted, 0u);
  EXPECT_GT(num_hits, 0u);
  EXPECT_EQ(graphs.replayed_steps > 0, has_graphs);
  EXPECT_EQ(graphs.padding_rows > 0, has_graphs);
}

constexpr TinyKind kInvarianceKinds[] = {
    {"Qwen3ForCausalLM", "float32"},  {"LlamaForCausalLM", "float32"},
    {"Qwen2ForCausalLM", "float32"},  {"Qwen3MoeForCausalLM", "float32"},
    {"Qwen3ForCausalLM", "bfloat16"}, {"LlamaForCausalLM", "bfloat16"},
    {"Qwen2ForCausalLM", "bfloat16"}, {"Qwen3MoeForCausalLM", "bfloat16"}};
INSTANTIATE_TEST_SUITE_P(Models, EngineInvarianceTest, ::testing::ValuesIn(kInvarianceKinds),
                         NameOfKind);

}  // namespace
}  // namespace taopd::testing
