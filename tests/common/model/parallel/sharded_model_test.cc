// Slices of a model against the whole model.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <barrier>
#include <functional>
#include <thread>

#include "common/model/config/tensor_parallel.h"
#include "common/model/parallel/collectives.h"
#include "common/model/parallel/sharded_head.h"
#include "tests/common/model/paged_steps.h"
#include "tests/common/model/tiny_models.h"
#include "tests/kernels/torch/random_tensor.h"
#include "tests/support/files.h"
#include "tests/support/status_matchers.h"

namespace taopd::testing {
namespace {

// float32 sums over another division of their terms, relative to the largest number.
constexpr double kSplitTolerance = 1e-5;

void ExpectClose(const at::Tensor& actual, const at::Tensor& expected, const std::string& what) {
  ExpectRelative(actual, expected, kSplitTolerance, what, /*smallest_size=*/1);
}

// The ranks of a tensor parallel model as threads of one process: Collectives without processes or
// sockets.
class ThreadRanks {
 public:
  explicit ThreadRanks(int64_t size)
      : tensors_(static_cast<size_t>(size)), barrier_(static_cast<std::ptrdiff_t>(size)) {
    for (int64_t rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(this, TensorParallel{rank, size}));
    }
  }

  Collectives* rank(size_t i) { return ranks_[i].get(); }

  // Runs function(rank) in one thread per rank, and returns when all are done.
  void Run(const std::function<void(size_t rank)>& function) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ranks_.size(); ++i) threads.emplace_back([&, i] { function(i); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  class Rank final : public Collectives {
   public:
    Rank(ThreadRanks* all, const TensorParallel& place) : all_(*all), place_(place) {}
    const TensorParallel& place() const override { return place_; }

    void AllReduceSum(at::Tensor& tensor) override {
      const std::vector<at::Tensor> tensors = Exchange(tensor);
      at::Tensor sum = at::zeros_like(tensor);
      for (const at::Tensor& other : tensors) sum.add_(other);
      all_.barrier_.arrive_and_wait();
      tensor.copy_(sum);
    }
    void Broadcast(at::Tensor& tensor) override {
      const std::vector<at::Tensor> tensors = Exchange(tensor);
      if (place_.rank != 0) tensor.copy_(tensors[0]);
      all_.barrier_.arrive_and_wait();
    }
    std::vector<at::Tensor> GatherToFirst(const at::Tensor& tensor,
                                          const std::vector<int64_t>& last_sizes) override {
      std::vector<at::Tensor> tensors = Exchange(tensor);
      for (size_t i = 0; i < tensors.size(); ++i) {
        TORCH_CHECK(tensors[i].size(-1) == last_sizes[i]);
        tensors[i] = tensors[i].clone();
      }
      all_.barrier_.arrive_and_wait();
      return place_.rank == 0 ? tensors : std::vector<at::Tensor>();
    }

   private:
    // Returns the tensors of all ranks, valid until the next arrival at the barrier.
    std::vector<at::Tensor> Exchange(const at::Tensor& tensor) {
      all_.tensors_[static_cast<size_t>(place_.rank)] = tensor;
      all_.barrier_.arrive_and_wait();
      return all_.tensors_;
    }
    ThreadRanks& all_;
    const TensorParallel place_;
  };

  std::vector<at::Tensor> tensors_;
  std::barrier<> barrier_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

std::unique_ptr<Decoder> LoadSlice(const std::string& dir, Collectives* group) {
  return LoadDecoder(dir, {.dtype = "float32", .device = "cpu", .group = group}).value();
}

struct Answers {
  at::Tensor hidden, logits;
  std::vector<ScoringOutput> scores;
};

std::vector<ScoringOptions> KindsOfScores() {
  std::vector<ScoringOptions> kinds(5);
  kinds[0].top_k = 4;
  kinds[1].top_k = 20;  // more than a slice has
  kinds[1].temperature = 0.7;
  kinds[1].entropy = true;
  kinds[2].top_k = 0;
  kinds[3].top_k = 3;
  kinds[3].rank = kinds[3].entropy = true;
  kinds[4].top_k = 5;
  kinds[4].dense = true;
  kinds[4].workspace_bytes = 1;  // one row at a time
  return kinds;
}

Answers Ask(Decoder* decoder, int64_t vocab_size) {
  const c10::InferenceMode inference;
  RandomStream random(3, "ids");
  const auto first = RandomTokens(40, vocab_size, &random);
  const auto second = RandomTokens(9, vocab_size, &random);
  PagedSteps steps(decoder, /*num_blocks=*/6);
  Answers answers;
  const at::Tensor begin = steps.Step({{0, first}, {1, second}});
  answers.hidden = at::cat({begin, steps.Step({{1, {1}}, {0, {2, 3}}})});
  answers.logits = decoder->Logits(answers.hidden.narrow(0, 45, 7));
  const int64_t num_rows = answers.hidden.size(0);
  const at::Tensor sampled = (at::arange(num_rows) * 5).remainder(vocab_size).to(at::kInt);
  const at::Tensor candidates =
      (at::arange(num_rows * 3).view({-1, 3}) * 7).remainder(vocab_size).to(at::kInt);
  for (const ScoringOptions& options : KindsOfScores()) {
    answers.scores.push_back(decoder->ScoreRows(answers.hidden, sampled, at::Tensor(), options));
  }
  answers.scores.push_back(
      decoder->ScoreRows(answers.hidden, sampled, candidates, KindsOfScores()[0]));
  answers.scores.push_back(decoder->ScoreRows(answers.hidden.narrow(0, 0, 0), at::Tensor(),
                                              at::Tensor(), KindsOfScores()[0]));
  return answers;
}

class ShardedModelTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedModelTest, AnswersAreThoseOfTheWholeModel) {
  UseOneThread();
  const std::string dir = SourcePath("tests/common/model/golden/" + std::string(GetParam()));
  const std::unique_ptr<Decoder> whole = LoadSlice(dir, nullptr);
  const int64_t vocab_size = whole->config().vocab_size;
  const Answers expected = Ask(whole.get(), vocab_size);
  int64_t num_sizes = 0;
  for (const int64_t size : {2, 4}) {
    if (!CheckTensorParallel(whole->config(), size).ok()) continue;
    ++num_sizes;
    ThreadRanks ranks(size);
    std::vector<Answers> answers(static_cast<size_t>(size));
    ranks.Run([&](size_t rank) {
      const std::unique_ptr<Decoder> slice = LoadSlice(dir, ranks.rank(rank));
      EXPECT_EQ(slice->lm_head().size(0),
                TensorParallel({static_cast<int64_t>(rank), size}).NumIds(vocab_size));
      answers[rank] = Ask(slice.get(), vocab_size);
    });
    for (const Answers& answer : answers) {
      ExpectClose(answer.hidden, expected.hidden, Concat("hidden states of ", size));
      EXPECT_TRUE(at::equal(answer.hidden, answers[0].hidden)) << "the ranks differ";
    }
    ExpectClose(answers[0].logits, expected.logits, Concat("logits of ", size));
    ASSERT_EQ(answers[0].scores.size(), expected.scores.size());
    for (size_t i = 0; i < expected.scores.size(); ++i) {
      ScoringOutput actual = answers[0].scores[i], wanted = expected.scores[i];
      for (size_t j = 0; j < actual.Tensors().size(); ++j) {
        const at::Tensor &a = *actual.Tensors()[j], &b = *wanted.Tensors()[j];
        const std::string what = Concat("tensor ", j, " of scores ", i, " of ", size);
        ASSERT_EQ(a.defined(), b.defined()) << what;
        if (!a.defined()) continue;
        if (a.scalar_type() == at::kInt) {
          EXPECT_TRUE(at::equal(a, b)) << what;
        } else {
          ExpectClose(a.exp(), b.exp(), what);
        }
      }
    }
  }
  EXPECT_GT(num_sizes, 0);
}

INSTANTIATE_TEST_SUITE_P(Models, ShardedModelTest,
                         ::testing::Values("llama_bias", "llama_plain", "qwen2_tied",
                                           "qwen2_window", "qwen2_yarn", "qwen3_tied",
                                           "qwen3_untied", "qwen3_moe", "qwen3_moe_mixed"));

TEST(ShardedHeadTest, TiesGoToTheLowerIdAcrossSlices) {
  const at::Tensor hidden = at::ones({2, 1});
  const at::Tensor head = at::tensor({1.0f, 3.0f, 2.0f, 3.0f, 2.0f, 2.0f, 0.5f}).view({7, 1});
  const ScoringOptions options = {.top_k = 4};
  ThreadRanks ranks(3);
  ScoringOutput output;
  ranks.Run([&](size_t rank) {
    const TensorParallel place = ranks.rank(rank)->place();
    const ScoringOutput own =
        ScoreRowsOfShards(hidden, head.narrow(0, place.FirstId(7), place.NumIds(7)).contiguous(), 7,
                          at::Tensor(), at::Tensor(), options, ranks.rank(rank));
    if (rank == 0) output = own;
  });
  EXPECT_TRUE(at::equal(output.ids_Nk, at::tensor({1, 3, 2, 4}, at::kInt).expand({2, 4})));
}

TEST(ShardedHeadTest, NanInOneSliceIsNanInTheRow) {
  at::Tensor head = at::ones({4, 1});
  head[3][0] = std::numeric_limits<float>::quiet_NaN();
  const ScoringOptions options = {.top_k = 2};
  ThreadRanks ranks(2);
  ScoringOutput output;
  ranks.Run([&](size_t rank) {
    const ScoringOutput own = ScoreRowsOfShards(
        at::ones({1, 1}), head.narrow(0, static_cast<int64_t>(rank) * 2, 2).contiguous(), 4,
        at::zeros({1}, at::kInt), at::Tensor(), options, ranks.rank(rank));
    if (rank == 0) output = own;
  });
  EXPECT_TRUE(output.sampled_log_probs_N.isnan().all().item<bool>());
  EXPECT_TRUE(output.log_tail_N.isnan().all().item<bool>());
}

TEST(TensorParallelTest, RefusesWhatCannotBeCut) {
  ModelConfig config = TinyConfig("Qwen3ForCausalLM");  // 4 heads, 2 key-value heads
  EXPECT_OK(CheckTensorParallel(config, 1));
  EXPECT_OK(CheckTensorParallel(config, 2));
  EXPECT_OK(CheckTensorParallel(config, 4));
  EXPECT_ERROR(CheckTensorParallel(config, 3), kInvalidArgument, "num_attention_heads 4");
  config.intermediate_size = 42;
  EXPECT_ERROR(CheckTensorParallel(config, 4), kInvalidArgument, "intermediate_size 42");
  config.intermediate_size = 40;
  config.num_attention_heads = 12;
  config.num_key_value_heads = 3;
  EXPECT_ERROR(CheckTensorParallel(config, 4), kInvalidArgument, "num_key_value_heads 3");
  EXPECT_ERROR(CheckTensorParallel(config, 0), kInvalidArgument, "0");
}

TEST(TensorParallelTest, StoredRevisionIsThatOfTheModel) {
  const std::string dir = SourcePath("tests/common/model/golden/qwen3_tied");
  for (const char* dtype : {"float32", "bfloat16"}) {
    auto decoder = LoadDecoder(dir, {.dtype = dtype, .device = "cpu"});
    ASSERT_OK(decoder.status());
    const auto expected = WeightsRevision(**decoder);
    const auto stored = StartStoredRevision(dir, dtype, "").get();
    ASSERT_OK(stored.status());
    EXPECT_EQ(*stored, *expected);
  }
}

}  // namespace
}  // namespace taopd::testing
