// Prefill, chunked prefill, decode and mixtures of them against one forward of the whole sequence.
#include "common/model/layers/kv_cache.h"

#include <gtest/gtest.h>

#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

constexpr double kTolerance = 1e-5;  // fp32: attention sums in another order
constexpr int64_t kTokensPerSlot = 96;

class KvCacheTest : public ::testing::TestWithParam<const char*> {
 protected:
  KvCacheTest() : decoder_(TinyDecoder(GetParam())), random_(11) {}

  at::Tensor Whole(const std::vector<int32_t>& ids) {
    return decoder_->Forward(PackedBatch::FromSequences({ids}, at::kCPU));
  }

  // Runs every sequence to its end, `next_len` deciding how many tokens a sequence gets in a step
  // (0: it waits), and compares all hidden states with those of whole sequences.
  void ExpectSameAsWhole(const std::vector<std::vector<int32_t>>& sequences,
                         const std::vector<int64_t>& slots, int64_t num_slots,
                         const std::function<int64_t(size_t sequence, int64_t past)>& next_len) {
    const c10::InferenceMode inference;
    KvCache cache(decoder_->config(), num_slots, kTokensPerSlot, at::kFloat, at::kCPU);
    std::vector<int64_t> past(sequences.size(), 0);
    std::vector<std::vector<at::Tensor>> parts(sequences.size());
    for (bool done = false; !done;) {
      std::vector<std::vector<int32_t>> step;
      std::vector<size_t> members;
      PackedBatch placed;
      for (size_t s = 0; s < sequences.size(); ++s) {
        const int64_t left = static_cast<int64_t>(sequences[s].size()) - past[s];
        const int64_t length = std::min(left, next_len(s, past[s]));
        if (length == 0) continue;
        const auto first = sequences[s].begin() + past[s];
        step.emplace_back(first, first + length);
        members.push_back(s);
        placed.slots.push_back(slots[s]);
        placed.past_lens.push_back(past[s]);
      }
      PackedBatch batch = PackedBatch::FromSequences(step, at::kCPU);
      batch.slots = placed.slots;
      batch.past_lens = placed.past_lens;
      const at::Tensor hidden_TH = decoder_->Forward(batch, &cache);
      for (size_t m = 0; m < members.size(); ++m) {
        const int64_t length = static_cast<int64_t>(step[m].size());
        parts[members[m]].push_back(hidden_TH.narrow(0, batch.cu_seqlens[m], length));
        past[members[m]] += length;
      }
      done = true;
      for (size_t s = 0; s < sequences.size(); ++s) {
        done = done && past[s] == static_cast<int64_t>(sequences[s].size());
      }
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      EXPECT_LE(MaxAbs(at::cat(parts[s]) - Whole(sequences[s])), kTolerance) << "sequence " << s;
    }
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

TEST_P(KvCacheTest, PrefillThenDecode) {
  ExpectSameAsWhole(Sequences({30, 12, 41, 5}), {0, 1, 2, 3}, 4,
                    [](size_t s, int64_t past) { return past == 0 ? 4 + int64_t(s) / 3 : 1; });
}

TEST_P(KvCacheTest, DecodeInSlotsThatAreFarApartAndOutOfOrder) {
  ExpectSameAsWhole(Sequences({20, 21, 22}), {40, 3, 17}, 50,
                    [](size_t, int64_t past) { return past == 0 ? 9 : 1; });
}

TEST_P(KvCacheTest, DecodeInSlotsWithGaps) {
  ExpectSameAsWhole(Sequences({20, 21, 22, 13, 9}), {9, 3, 5, 6, 8}, 10,
                    [](size_t, int64_t past) { return past == 0 ? 2 : 1; });
}

TEST_P(KvCacheTest, StepsThatMixPrefillChunksAndDecode) {
  // Sequence s starts when it is given its first token, in steps of its own length.
  int64_t calls = 0;
  ExpectSameAsWhole(Sequences({40, 33, 25, 50, 17, 1}), {5, 4, 3, 2, 1, 0}, 6,
                    [&](size_t s, int64_t past) -> int64_t {
                      if (++calls <= 6 * static_cast<int64_t>(s)) return 0;
                      return past == 0 ? 3 + s : (past + static_cast<int64_t>(s)) % 3 == 0 ? 6 : 1;
                    });
}

TEST_P(KvCacheTest, ChunksOfASequenceThatFillsItsSlot) {
  ExpectSameAsWhole(Sequences({kTokensPerSlot, kTokensPerSlot}), {1, 0}, 2,
                    [](size_t s, int64_t) { return s == 0 ? 31 : 17; });
}

TEST_P(KvCacheTest, WhatASlotHeldBeforeDoesNotMatter) {
  const c10::InferenceMode inference;
  const auto sequences = Sequences({60, 10});
  KvCache cache(decoder_->config(), 1, kTokensPerSlot, at::kFloat, at::kCPU);
  PackedBatch old = PackedBatch::FromSequences({sequences[0]}, at::kCPU);
  old.slots = old.past_lens = {0};
  decoder_->Forward(old, &cache);
  const std::vector<int32_t> head(sequences[1].begin(), sequences[1].end() - 1);
  PackedBatch prefill = PackedBatch::FromSequences({head}, at::kCPU);
  prefill.slots = prefill.past_lens = {0};
  decoder_->Forward(prefill, &cache);
  PackedBatch decode = PackedBatch::FromSequences({{sequences[1].back()}}, at::kCPU);
  decode.slots = {0};
  decode.past_lens = {9};
  const at::Tensor last_1H = decoder_->Forward(decode, &cache);
  EXPECT_LE(MaxAbs(last_1H - Whole(sequences[1]).narrow(0, 9, 1)), kTolerance);
}

// Bit for bit, whatever the lengths and slots of the other sequences (fp32, kv lengths in whole
// vectors).
TEST_P(KvCacheTest, DecodeDoesNotDependOnTheOtherSequences) {
  const c10::InferenceMode inference;
  const int64_t tokens_per_slot = 640;
  const auto sequences = Sequences({9, 50, 77, 130, 20, 600});
  const auto decode_last = [&](const std::vector<size_t>& members,
                               const std::vector<int64_t>& slots) {
    KvCache cache(decoder_->config(), 40, tokens_per_slot, at::kFloat, at::kCPU);
    std::vector<std::vector<int32_t>> heads, tails;
    std::vector<int64_t> past;
    for (size_t s : members) {
      heads.emplace_back(sequences[s].begin(), sequences[s].end() - 1);
      tails.push_back({sequences[s].back()});
      past.push_back(static_cast<int64_t>(sequences[s].size()) - 1);
    }
    PackedBatch prefill = PackedBatch::FromSequences(heads, at::kCPU);
    prefill.slots = slots;
    prefill.past_lens.assign(members.size(), 0);
    decoder_->Forward(prefill, &cache);
    PackedBatch decode = PackedBatch::FromSequences(tails, at::kCPU);
    decode.slots = slots;
    decode.past_lens = past;
    return decoder_->Forward(decode, &cache);
  };
  const at::Tensor all = decode_last({0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5});
  for (size_t s = 0; s < sequences.size(); ++s) {
    EXPECT_TRUE(at::equal(decode_last({s}, {3})[0], all[static_cast<int64_t>(s)])) << s;
  }
  const at::Tensor some = decode_last({4, 1, 2}, {39, 0, 11});
  EXPECT_TRUE(at::equal(some[0], all[4]));
  EXPECT_TRUE(at::equal(some[1], all[1]));
  EXPECT_TRUE(at::equal(some[2], all[2]));
}

TEST_P(KvCacheTest, SizeIsWhatItAllocates) {
  const ModelConfig& config = decoder_->config();
  KvCache cache(config, 3, 10, at::kBFloat16, at::kCPU);
  int64_t size_bytes = 0;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    size_bytes += static_cast<int64_t>(cache.keys(i).nbytes() + cache.values(i).nbytes());
  }
  EXPECT_EQ(KvCache::SizeBytes(config, 3, 10, at::kBFloat16), size_bytes);
}

INSTANTIATE_TEST_SUITE_P(Models, KvCacheTest,
                         ::testing::Values("Qwen3ForCausalLM", "LlamaForCausalLM",
                                           "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace taopd::testing
