// Inference through pages: chunks, decoding and mixtures of them against one pass over the whole
// sequence. With the kernels of the CPU, all of them are equal bit for bit, and close to Forward;
// with ATen they are close.
#include <gtest/gtest.h>

#include <functional>

#include "tests/common/model/paged_steps.h"
#include "tests/common/model/tiny_models.h"
#include "tests/kernels/torch/threads_restored.h"

namespace taopd::testing {
namespace {

// Relative to the whole, in the Euclidean norm: the order of sums differs, and 16-bit types round
// many times. Single rows may be farther away: if two experts are nearly equally good, either may
// be chosen.
double ToleranceOf(const std::string& dtype) {
  return dtype == "bfloat16" ? 0.03 : dtype == "float16" ? 0.004 : 1e-5;
}
double RelativeError(const at::Tensor& value, const at::Tensor& expected) {
  const at::Tensor exact = expected.to(at::kDouble);
  return ((value.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

class PagedInferenceTest : public ::testing::TestWithParam<TinyKind> {
 protected:
  PagedInferenceTest()
      : decoder_(TinyDecoder(GetParam().architecture, GetParam().dtype)), random_(11) {}

  at::Tensor Whole(const std::vector<int32_t>& ids) {
    PagedSteps steps(decoder_.get(), 40);
    return steps.Step({{0, ids}});
  }

  // Runs every sequence to its end. next_len returns how many tokens a sequence gets in a step (0:
  // it waits). compare(hidden, ids) checks the hidden states of a sequence.
  void RunInSteps(const std::vector<std::vector<int32_t>>& sequences, KvPages::Layout layout,
                  const std::function<int64_t(size_t sequence, int64_t past)>& next_len,
                  const std::function<void(const at::Tensor& hidden_TH,
                                           const std::vector<int32_t>& ids)>& compare) {
    PagedSteps steps(decoder_.get(), 60, layout);
    std::vector<std::vector<at::Tensor>> parts_of(sequences.size());
    for (bool done = false; !done;) {
      std::vector<PagedSteps::Part> parts;
      done = true;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const int64_t past = steps.length(s);
        const int64_t left = static_cast<int64_t>(sequences[s].size()) - past;
        done = done && left == 0;
        const int64_t length = std::min(left, next_len(s, past));
        if (length == 0) continue;
        const auto first = sequences[s].begin() + past;
        parts.push_back({s, std::vector<int32_t>(first, first + length)});
      }
      if (parts.empty()) continue;
      const at::Tensor hidden_TH = steps.Step(parts);
      int64_t row = 0;
      for (const auto& part : parts) {
        const auto num = static_cast<int64_t>(part.ids.size());
        parts_of[part.sequence].push_back(hidden_TH.narrow(0, row, num));
        row += num;
      }
    }
    for (size_t s = 0; s < sequences.size(); ++s) compare(at::cat(parts_of[s]), sequences[s]);
  }
  void ExpectTheSameBitsOfTheKernels(
      const std::vector<std::vector<int32_t>>& sequences,
      const std::function<int64_t(size_t sequence, int64_t past)>& next_len) {
    RunInSteps(sequences, KvPages::Layout::kKernel, next_len,
               [&](const at::Tensor& hidden_TH, const std::vector<int32_t>& ids) {
                 EXPECT_TRUE(at::equal(hidden_TH, Whole(ids))) << ids.size() << " tokens";
               });
  }
  void ExpectTheSameBits(const std::vector<std::vector<int32_t>>& sequences,
                         const std::function<int64_t(size_t sequence, int64_t past)>& next_len) {
    ExpectTheSameBitsOfTheKernels(sequences, next_len);
    RunInSteps(sequences, KvPages::Layout::kPlain, next_len,
               [&](const at::Tensor& hidden_TH, const std::vector<int32_t>& ids) {
                 EXPECT_LE(RelativeError(hidden_TH, Whole(ids)), ToleranceOf(GetParam().dtype))
                     << ids.size() << " tokens";
               });
  }

  std::vector<std::vector<int32_t>> Sequences(const std::vector<int64_t>& lengths) {
    std::vector<std::vector<int32_t>> sequences;
    for (int64_t length : lengths) {
      sequences.push_back(RandomTokens(length, decoder_->config().vocab_size, &random_));
    }
    return sequences;
  }

  std::unique_ptr<Decoder> decoder_;
  RandomStream random_;
};

TEST_P(PagedInferenceTest, IsTheForwardPass) {
  const c10::InferenceMode inference;
  for (const auto& ids : Sequences({1, 2, 31, 33, 300})) {
    const at::Tensor forward_TH = decoder_->Forward(PackedBatch::FromSequences({ids}, at::kCPU));
    EXPECT_LE(RelativeError(Whole(ids), forward_TH), ToleranceOf(GetParam().dtype)) << ids.size();
  }
}

TEST_P(PagedInferenceTest, PrefillThenDecode) {
  ExpectTheSameBits(Sequences({30, 12, 41, 5}),
                    [](size_t s, int64_t past) { return past == 0 ? 4 + int64_t(s) / 3 : 1; });
}

// The models are small enough that threads take rows, each through all layers.
TEST_P(PagedInferenceTest, ThreadsThatShareTheRowsOfAStep) {
  const auto sequences = Sequences(std::vector<int64_t>(30, 20));
  const auto run = [&] {
    std::vector<at::Tensor> hidden;
    PagedSteps steps(decoder_.get(), 60);
    for (size_t t = 0; t < 20; t += t == 0 ? 9 : 1) {
      std::vector<PagedSteps::Part> parts;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const auto first = sequences[s].begin() + static_cast<int64_t>(t);
        parts.push_back({s, std::vector<int32_t>(first, first + (t == 0 ? 9 : 1))});
      }
      hidden.push_back(steps.Step(parts));
    }
    return at::cat(hidden);
  };
  const ThreadsRestored one_thread(1);
  const at::Tensor expected = run();
  at::set_num_threads(3);
  EXPECT_TRUE(at::equal(run(), expected));
}

TEST_P(PagedInferenceTest, StepsThatMixPrefillChunksAndDecode) {
  // Sequence s starts when it gets its first token, and advances in steps of its own length.
  int64_t calls = 0;
  ExpectTheSameBits(Sequences({40, 33, 25, 50, 17, 1}), [&](size_t s, int64_t past) -> int64_t {
    if (++calls <= 6 * static_cast<int64_t>(s)) return 0;
    return past == 0 ? 3 + s : (past + static_cast<int64_t>(s)) % 3 == 0 ? 6 : 1;
  });
}

TEST_P(PagedInferenceTest, LongChunks) {
  ExpectTheSameBits(Sequences({290, 96}), [](size_t s, int64_t) { return s == 0 ? 131 : 17; });
}

TEST_P(PagedInferenceTest, ThreadsChangeNothing) {
  const auto ids = Sequences({270})[0];
  const at::Tensor expected = Whole(ids);
  for (int num_threads : {2, 3, 4}) {
    const ThreadsRestored threads(num_threads);
    EXPECT_TRUE(at::equal(Whole(ids), expected)) << num_threads;
  }
}

// A sequence's numbers do not depend on the rest of the pack.
TEST_P(PagedInferenceTest, PacksOfManyLengths) {
  const auto all =
      Sequences({1, 2, 3, 5, 8, 9, 31, 64, 65, 100, 200, 300, 2, 53, 53, 54, 7, 1, 250});
  const auto whole = [](size_t, int64_t) { return int64_t{300}; };
  for (const int num_threads : {1, 2}) {
    const ThreadsRestored threads(num_threads);
    ExpectTheSameBitsOfTheKernels(all, whole);
    ExpectTheSameBitsOfTheKernels({all[13], all[0], all[11]}, whole);
    ExpectTheSameBitsOfTheKernels({all[18], all[14], all[13], all[1], all[2]}, whole);
  }
}

// The data that a failed request leaves in a block must not reach the next one.
TEST_P(PagedInferenceTest, WhatABlockHeldBeforeDoesNotMatter) {
  const auto ids = Sequences({40})[0];
  for (const auto layout : {KvPages::Layout::kKernel, KvPages::Layout::kPlain}) {
    PagedSteps steps(decoder_.get(), 4, layout);
    for (int64_t i = 0; i < decoder_->config().num_hidden_layers; ++i) {
      if (layout == KvPages::Layout::kKernel) {
        std::memset(steps.pages().blocks(i), 0xff,
                    KvPages::BytesPerBlock(decoder_->config(), decoder_->dtype(), layout) /
                        decoder_->config().num_hidden_layers * 4);
      } else {
        at::Tensor(steps.pages().keys(i)).fill_(std::nan(""));
        at::Tensor(steps.pages().values(i)).fill_(std::nan(""));
      }
    }
    at::Tensor hidden_1H = steps.Step({{0, {ids.begin(), ids.end() - 1}}});
    hidden_1H = steps.Step({{0, {ids.back()}}});
    EXPECT_LE(RelativeError(hidden_1H, Whole(ids).narrow(0, 39, 1)), ToleranceOf(GetParam().dtype));
  }
}

TEST_P(PagedInferenceTest, CopiedBlocksGoOnAlike) {
  const auto ids = Sequences({40})[0];
  PagedSteps steps(decoder_.get(), 6);
  steps.Step({{0, {ids.begin(), ids.end() - 1}}});  // blocks 5 and 0
  steps.pages().CopyBlock(0, 3);
  const std::vector<int32_t> table = {5, 3};
  const PagedBatch batch = {.token_ids_T = at::tensor(std::vector<int64_t>{ids.back()}),
                            .sequences = {{0, 1, 39, table.data()}}};
  const c10::InferenceMode inference;
  EXPECT_TRUE(at::equal(decoder_->Infer(batch, &steps.pages()), Whole(ids).narrow(0, 39, 1)));
}

TEST_P(PagedInferenceTest, PagesOfOneLayerServeWholeSequences) {
  const auto ids = Sequences({70})[0];
  const c10::InferenceMode inference;
  KvPages pages = KvPages::ForWholeSequences(decoder_->config(), 3, decoder_->dtype(), at::kCPU,
                                             KvPages::Layout::kKernel);
  const std::vector<int32_t> table = {0, 1, 2};
  const PagedBatch batch = {.token_ids_T = PackedBatch::FromSequences({ids}, at::kCPU).token_ids_T,
                            .sequences = {{0, 70, 0, table.data()}}};
  EXPECT_TRUE(at::equal(decoder_->Infer(batch, &pages), Whole(ids)));
}

TEST_P(PagedInferenceTest, LogitsAreTheHeadsProduct) {
  const at::Tensor hidden_NH = Whole(Sequences({19})[0]);
  const at::Tensor logits_NV = decoder_->Logits(hidden_NH);
  ASSERT_EQ(logits_NV.scalar_type(), at::kFloat);
  const at::Tensor expected =
      at::mm(hidden_NH.to(at::kDouble), decoder_->lm_head().to(at::kDouble).t());
  EXPECT_LE(MaxAbs(logits_NV - expected), 1e-5);
  for (int64_t n : {0, 7, 18}) {
    EXPECT_TRUE(at::equal(decoder_->Logits(hidden_NH.narrow(0, n, 1))[0], logits_NV[n]));
  }
}

constexpr TinyKind kPagedKinds[] = {
    {"Qwen3ForCausalLM", "float32"},  {"LlamaForCausalLM", "float32"},
    {"Qwen2ForCausalLM", "float32"},  {"Qwen3MoeForCausalLM", "float32"},
    {"Qwen3ForCausalLM", "bfloat16"}, {"LlamaForCausalLM", "bfloat16"},
    {"Qwen2ForCausalLM", "bfloat16"}, {"Qwen3MoeForCausalLM", "bfloat16"},
    {"Qwen3ForCausalLM", "float16"}};
INSTANTIATE_TEST_SUITE_P(Models, PagedInferenceTest, ::testing::ValuesIn(kPagedKinds), NameOfKind);

TEST(PackedWeights, FollowWhatIsWritten) {
  const auto decoder = TinyDecoder("Qwen3MoeForCausalLM");
  const auto infer = [&] {
    PagedSteps steps(decoder.get(), 1);
    const at::Tensor hidden_TH = steps.Step({{0, {1, 2, 3}}});
    const c10::InferenceMode inference;
    return decoder->Logits(hidden_TH);
  };
  for (const auto& [name, parameter] : decoder->Parameters()) {
    const at::Tensor before = infer();
    const uint64_t version = decoder->weight_version();
    at::Tensor(parameter).mul_(1.5).add_(0.1);
    EXPECT_GT(decoder->weight_version(), version) << name;
    const at::Tensor after = infer();
    // An expert may have no token here; everything else changes the logits.
    if (name.find("experts") == std::string::npos) {
      EXPECT_FALSE(at::equal(after, before)) << name;
    }
  }
}

TEST(PackedWeights, SayWhatThePlanDoesNotKnow) {
  const c10::InferenceMode inference;
  for (const char* const dtype : {"bfloat16", "float32"}) {
    const auto decoder = TinyDecoder("Qwen3ForCausalLM", dtype);
    EXPECT_EQ(decoder->PrepareInference(), 0);
  }
  // One of the matrices has numbers over hundreds of powers of two.
  const auto decoder = TinyDecoder("Qwen3ForCausalLM", "bfloat16");
  int64_t outputs = 0, inputs = 0;
  for (const auto& [name, parameter] : decoder->Parameters()) {
    if (name.find("layers.0.mlp.down_proj") == std::string::npos) continue;
    outputs = (parameter.size(0) + 63) / 64 * 64;
    inputs = (parameter.size(1) + 1) / 2 * 2;
    const at::Tensor powers = at::arange(parameter.numel(), at::kFloat).remainder_(200).sub_(100);
    at::Tensor(parameter).copy_(at::exp2(powers).view_as(parameter));
  }
  ASSERT_GT(outputs, 0);
  EXPECT_EQ(decoder->PrepareInference(), outputs * inputs * 2 / 4);
}

TEST(KvPages, SizeIsWhatItAllocates) {
  const auto decoder = TinyDecoder("Qwen3ForCausalLM");
  const ModelConfig& config = decoder->config();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const KvPages pages(config, 3, dtype, at::kCPU, KvPages::Layout::kPlain);
    int64_t size_bytes = 0;
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
      size_bytes += static_cast<int64_t>(pages.keys(i).nbytes() + pages.values(i).nbytes());
    }
    EXPECT_EQ(3 * KvPages::BytesPerBlock(config, dtype, KvPages::Layout::kPlain), size_bytes);
  }
}

}  // namespace
}  // namespace taopd::testing
