// Compares a recorded decode step with Decoder::Infer. The hidden states and the pages are the same
// bit for bit, whatever the batch, its padding and the places of its sequences. Only the rows' own
// places and the scratch block are written.
#include "common/engine/graphs/decode_graphs.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "common/memory/cuda_graphs.h"
#include "tests/common/engine/graphs/function_backend.h"
#include "tests/common/model/tiny_models.h"

namespace taopd::testing {
namespace {

constexpr int64_t kNumBlocks = 120;
constexpr int64_t kMaxSeqLen = 100;
constexpr int32_t kVocabulary = 31;

// Pages that are filled with NaNs at first.
class Pages {
 public:
  Pages(const Decoder& decoder, int64_t num_blocks)
      : pages_(decoder.config(), num_blocks, decoder.dtype(), at::kCPU, KvPages::Layout::kKernel),
        num_layers_(decoder.config().num_hidden_layers),
        block_bytes_(
            KvPages::BytesPerBlock(decoder.config(), decoder.dtype(), KvPages::Layout::kKernel) /
            num_layers_) {
    for (int64_t i = 0; i < num_layers_; ++i) {
      std::memset(pages_.blocks(i), 0xff, static_cast<size_t>(num_blocks * block_bytes_));
    }
  }
  KvPages* get() { return &pages_; }
  std::string Block(int64_t layer, int64_t block) const {
    const char* const begin = static_cast<const char*>(pages_.blocks(layer));
    return std::string(begin + block * block_bytes_, static_cast<size_t>(block_bytes_));
  }
  std::string Blocks(int64_t num_blocks) const {
    std::string bytes;
    for (int64_t layer = 0; layer < num_layers_; ++layer) {
      for (int64_t b = 0; b < num_blocks; ++b) bytes += Block(layer, b);
    }
    return bytes;
  }

 private:
  KvPages pages_;
  const int64_t num_layers_;
  const int64_t block_bytes_;
};

bool SameBytes(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

// Computes sequences in shuffled blocks twice: eagerly in pages without a scratch block, and by
// replays in other pages.
class DecodeGraphsTest : public ::testing::TestWithParam<TinyKind> {
 protected:
  void Make(std::vector<int64_t> sizes, int64_t num_sequences, bool captures = true) {
    const DecodeGraphs::Options options = {.sizes = std::move(sizes),
                                           .max_seq_len = kMaxSeqLen,
                                           .max_model_len = kMaxSeqLen,
                                           .scratch_block = kNumBlocks};
    graphs_ = std::make_unique<DecodeGraphs>(
        decoder_, std::make_unique<FunctionBackend>(decoder_.get(), &log_), options);
    if (captures) graphs_->Capture(replay_pages_.get(), nullptr);
    std::vector<int32_t> free_blocks(kNumBlocks);
    std::iota(free_blocks.begin(), free_blocks.end(), 0);
    random_.Shuffle(&free_blocks);
    for (int64_t s = 0; s < num_sequences; ++s) {
      InferenceRequest request = {.token_ids = RandomTokens(kMaxSeqLen + 1, kVocabulary, &random_),
                                  .sampling = SamplingParams()};
      auto& sequence = sequences_.emplace_back(std::make_unique<Sequence>(
          RequestHandle{1}, std::move(request), nullptr, std::vector<int32_t>()));
      for (int64_t b = 0; b < KvBlocksFor(kMaxSeqLen + 1); ++b) {
        sequence->blocks.push_back(free_blocks.back());
        free_blocks.pop_back();
      }
    }
  }

  // Returns the hidden states that Infer computes for the rows.
  at::Tensor Eager(const std::vector<ScheduledRows>& rows, Pages* pages) {
    PagedBatch batch;
    std::vector<int64_t> ids;
    for (const ScheduledRows& scheduled : rows) {
      batch.sequences.push_back({static_cast<int64_t>(ids.size()), scheduled.count, scheduled.first,
                                 scheduled.sequence->blocks.data()});
      for (int64_t i = 0; i < scheduled.count; ++i)
        ids.push_back(scheduled.sequence->token(scheduled.first + i));
    }
    batch.token_ids_T = at::tensor(ids, at::kLong);
    return decoder_->Infer(batch, pages->get());
  }

  // Feeds all but a random rest of the prompts to both pages.
  void Prefill() {
    std::vector<ScheduledRows> rows;
    for (const auto& sequence : sequences_) {
      sequence->num_computed = 1 + static_cast<int64_t>(random_.NextBelow(kMaxSeqLen - 50));
      rows.push_back({sequence.get(), 0, sequence->num_computed, {}, false});
    }
    Eager(rows, &eager_pages_);
    Eager(rows, &replay_pages_);
  }

  // Returns the next rows of some of the sequences, in any order.
  std::vector<ScheduledRows> NextRows(int64_t num) {
    std::vector<size_t> order(sequences_.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<ScheduledRows> rows;
    for (int64_t i = 0; i < num; ++i) {
      std::swap(order[static_cast<size_t>(i)],
                order[static_cast<size_t>(i) + random_.NextBelow(order.size() - i)]);
      Sequence* const sequence = sequences_[order[static_cast<size_t>(i)]].get();
      rows.push_back({sequence, sequence->num_computed++, 1, {}, true});
    }
    return rows;
  }

  at::Tensor Replay(const std::vector<ScheduledRows>& rows) {
    return graphs_->Run(rows, replay_pages_.get(), nullptr);
  }
  void ExpectSamePages() {
    EXPECT_TRUE(eager_pages_.Blocks(kNumBlocks) == replay_pages_.Blocks(kNumBlocks));
  }
  void ExpectReplayLikeEager(const std::vector<ScheduledRows>& rows) {
    const at::Tensor expected = Eager(rows, &eager_pages_), replayed = Replay(rows);
    ASSERT_TRUE(replayed.defined());
    EXPECT_TRUE(SameBytes(replayed, expected)) << rows.size() << " rows";
    EXPECT_TRUE(expected.isfinite().all().item<bool>());
  }

  RandomStream random_{4, "decode graphs"};
  std::shared_ptr<Decoder> decoder_ = TinyDecoder(GetParam().architecture, GetParam().dtype);
  const c10::InferenceMode inference_;  // the parameters are not inference tensors
  BackendLog log_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  Pages eager_pages_{*decoder_, kNumBlocks};
  Pages replay_pages_{*decoder_, kNumBlocks + 1};
  std::unique_ptr<DecodeGraphs> graphs_;
};

TEST_P(DecodeGraphsTest, AReplayGivesTheBytesOfAnEagerStep) {
  Make(CaptureSizes(24), 26);
  EXPECT_EQ(graphs_->stats().num_graphs, 6);  // 1, 2, 4, 8, 16 and 24
  Prefill();
  uint64_t padding = 0;
  // Every possible number of padding rows occurs, after batches that left other values in the
  // buffers.
  for (int64_t i = 0; i < 48; ++i) {
    const int64_t num = i < 24 ? i + 1 : 48 - i;
    ExpectReplayLikeEager(NextRows(num));
    padding += static_cast<uint64_t>(PaddedSize(CaptureSizes(24), num) - num);
  }
  ExpectSamePages();
  EXPECT_GT(padding, 50u);
  const GraphStats stats = graphs_->stats();
  EXPECT_EQ(stats.padding_rows, padding);
  EXPECT_EQ(stats.replayed_steps, static_cast<uint64_t>(log_.num_replays));
  EXPECT_EQ(stats.eager_steps, 0u);
  EXPECT_EQ(stats.num_captures, 1u);
}

TEST_P(DecodeGraphsTest, PaddingWritesToTheScratchBlockAlone) {
  Make({16}, 3, /*captures=*/false);
  Prefill();
  const std::string before = replay_pages_.Blocks(kNumBlocks);
  const std::string scratch = replay_pages_.Block(1, kNumBlocks);
  // All 16 rows are padding while they are recorded, and 15 of them in the replay.
  graphs_->Capture(replay_pages_.get(), nullptr);
  EXPECT_TRUE(replay_pages_.Blocks(kNumBlocks) == before);
  EXPECT_FALSE(replay_pages_.Block(1, kNumBlocks) == scratch);
  ExpectReplayLikeEager(NextRows(1));
  ExpectSamePages();
}

TEST_P(DecodeGraphsTest, SequencesThatShareBlocksReadThem) {
  Make({4, 8}, 6);
  // All sequences share the first two blocks of the first one.
  for (auto& sequence : sequences_) {
    sequence->blocks[0] = sequences_[0]->blocks[0];
    sequence->blocks[1] = sequences_[0]->blocks[1];
    sequence->num_computed = 2 * kBlockTokens;
    std::copy_n(sequences_[0]->request.token_ids.begin(), 2 * kBlockTokens,
                sequence->request.token_ids.begin());
  }
  for (Pages* pages : {&eager_pages_, &replay_pages_}) {
    Eager({{sequences_[0].get(), 0, 2 * kBlockTokens, {}, false}}, pages);
  }
  for (int64_t num : {3, 6, 5, 4, 6}) ExpectReplayLikeEager(NextRows(num));
  ExpectSamePages();
}

TEST_P(DecodeGraphsTest, OtherStepsRunEagerly) {
  Make({1, 2}, 3);
  Prefill();
  EXPECT_FALSE(Replay(NextRows(3)).defined());  // more than the largest size
  std::vector<ScheduledRows> rows = NextRows(2);
  rows[1].count = 2;  // a prompt
  EXPECT_FALSE(Replay(rows).defined());
  rows[1].count = 1;
  rows[0].first = kMaxSeqLen;  // the row after the last place
  EXPECT_FALSE(Replay(rows).defined());
  EXPECT_EQ(graphs_->stats().eager_steps, 3u);
  EXPECT_EQ(log_.num_replays, 0);
  rows[0].first = kMaxSeqLen - 1;
  EXPECT_TRUE(Replay(rows).defined());
  EXPECT_EQ(graphs_->stats().eager_steps, 3u);
  EXPECT_EQ(graphs_->stats().replayed_steps, 1u);
}

TEST_P(DecodeGraphsTest, WeightsThatAreWrittenInPlaceAreSeen) {
  Make({4}, 3);
  Prefill();
  const std::vector<ScheduledRows> rows = NextRows(3);
  const at::Tensor before = Replay(rows).clone();
  {
    const c10::InferenceMode normal(false);
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : decoder_->Parameters()) parameter.mul_(0.75);
  }
  const at::Tensor after = Replay(rows).clone();
  EXPECT_FALSE(SameBytes(before, after));
  EXPECT_TRUE(SameBytes(after, Eager(rows, &replay_pages_)));
  EXPECT_EQ(log_.num_sets, 1);
}

TEST_P(DecodeGraphsTest, WhatHasMovedIsRecordedAgain) {
  Make({4, 8}, 3);
  Prefill();
  ExpectReplayLikeEager(NextRows(3));
  EXPECT_EQ(log_.num_sets, 1);
  {  // A parameter is in new memory.
    const c10::InferenceMode normal(false);
    at::Tensor norm = decoder_->Parameters().back().second;
    norm.set_data(norm.detach().clone());
  }
  ExpectReplayLikeEager(NextRows(2));
  EXPECT_EQ(log_.num_sets, 2);
  // A longer sequence makes a new rotary table.
  Sequence& sequence = *sequences_[0];
  PagedBatch longer = {.token_ids_T = at::zeros({1}, at::kLong)};
  std::vector<int32_t> table(KvBlocksFor(500), sequence.blocks[3]);
  Pages elsewhere(*decoder_, kNumBlocks);
  longer.sequences = {{0, 1, 499, table.data()}};
  decoder_->Infer(longer, elsewhere.get());
  ExpectReplayLikeEager(NextRows(3));
  EXPECT_EQ(log_.num_sets, 3);
  // The pages are others.
  const std::vector<ScheduledRows> rows = NextRows(3);
  Pages others(*decoder_, kNumBlocks + 1);
  EXPECT_TRUE(graphs_->Run(rows, others.get(), nullptr).defined());
  EXPECT_EQ(log_.num_sets, 4);
  EXPECT_EQ(graphs_->stats().num_captures, 4u);
  EXPECT_EQ(log_.num_records, (std::vector<int64_t>{2, 2, 2, 2}));
}

TEST_P(DecodeGraphsTest, ARecordThatFailsLeavesNone) {
  Make({1, 2, 4}, 3, /*captures=*/false);
  log_.fails_after = 2;
  EXPECT_THROW(graphs_->Capture(replay_pages_.get(), nullptr), c10::Error);
  EXPECT_EQ(graphs_->stats().num_graphs, 0);
  log_.fails_after = -1;
  graphs_->Capture(replay_pages_.get(), nullptr);
  EXPECT_EQ(graphs_->stats().num_graphs, 3);
  Prefill();
  ExpectReplayLikeEager(NextRows(3));
  // The graphs are lost and cannot be recorded again, so steps are eager from then on.
  graphs_->Drop();
  EXPECT_EQ(graphs_->stats().num_graphs, 0);
  log_.fails_after = 1;
  EXPECT_FALSE(Replay(NextRows(2)).defined());
  log_.fails_after = -1;
  EXPECT_FALSE(Replay(NextRows(2)).defined());
  EXPECT_EQ(graphs_->stats().eager_steps, 2u);
  EXPECT_EQ(graphs_->stats().num_captures, 1u);
  EXPECT_EQ(graphs_->stats().num_graphs, 0);
}

// A graph would keep such a value forever, and CUDA refuses to wait while a stream is captured.
TEST_P(DecodeGraphsTest, ARecordedStepWaitsForNothing) {
  Make(CaptureSizes(8), 1);
  EXPECT_GT(log_.num_operations, 10);
  EXPECT_THAT(log_.waits, IsEmpty());
}

constexpr TinyKind kDecodeKinds[] = {{"Qwen3ForCausalLM", "float32"},
                                     {"LlamaForCausalLM", "float32"},
                                     {"Qwen2ForCausalLM", "float32"},
                                     {"Qwen3ForCausalLM", "bfloat16"},
                                     {"LlamaForCausalLM", "bfloat16"}};
INSTANTIATE_TEST_SUITE_P(Models, DecodeGraphsTest, ::testing::ValuesIn(kDecodeKinds), NameOfKind);

}  // namespace
}  // namespace taopd::testing
