#include "trainer/step/balance/partition.h"

#include <set>

#include "tests/common/dist/rank_threads.h"
#include "tests/trainer/step/small_model.h"

namespace taopd::testing {
namespace {

// The long responses come last, and each has a weight of its own.
constexpr int64_t kSequences = 12;
ScoredRollout TestRollout(int64_t sequence) {
  ScoredRollout item;
  item.rollout.prompt_ids.assign(3, 1);
  item.rollout.response_ids.assign(static_cast<size_t>(1 + sequence * sequence / 4),
                                   static_cast<int32_t>(sequence));
  item.rollout.finish = sequence % 3 == 0 ? FinishReason::kLength : FinishReason::kStop;
  item.lacks_teacher_prompt = sequence % 5 == 1;
  item.scores.weight = static_cast<double>(1 + sequence);
  return item;
}

struct RankResult {
  std::vector<int64_t> sequences;
  std::vector<double> row_weights;
  int64_t num_tokens = 0;
  std::vector<std::vector<SequenceRange>> micro_batches;
};

std::vector<RankResult> PartitionOnRanks(int64_t world, int64_t num_shares, bool balances,
                                         bool mask_truncated = false, bool skips_missing = false) {
  std::vector<RankResult> ranks(world);
  OnRanks(world, ProcessGroupOptions(), [&](ProcessGroup& group) {
    const ModelConfig model = SmallModel();
    std::vector<ScoredRollout> items(kSequences);
    PartitionInput input = {.model = &model,
                            .shares = *Shares::Make(num_shares, group.rank(), world),
                            .mask_truncated = mask_truncated,
                            .skips_missing = skips_missing,
                            .micro_batch_tokens = 40,
                            .balances = balances};
    input.prompt_lengths.assign(kSequences, 3);
    const SequenceRange mine = input.shares.OwnRange(kSequences);
    for (int64_t i = mine.begin; i < mine.end; ++i) items[i] = TestRollout(i);
    input.item = [&](int64_t sequence) -> const ScoredRollout& {
      EXPECT_TRUE(sequence >= mine.begin && sequence < mine.end);
      return items[sequence];
    };
    ASSERT_OK_AND_ASSIGN(const RankMiniBatch batch, PartitionMiniBatch(input, &group));
    RankResult& result = ranks[group.rank()];
    result.sequences = batch.sequences;
    result.row_weights = batch.row_weights;
    result.micro_batches = batch.micro_batches;
    ASSERT_EQ(batch.items.size(), batch.sequences.size());
    int64_t next = 0, num_micro_batches = 0;
    for (const auto& share : batch.micro_batches) {
      for (const SequenceRange& range : share) {
        EXPECT_EQ(range.begin, next);
        next = range.end;
        ++num_micro_batches;
      }
    }
    EXPECT_EQ(next, static_cast<int64_t>(batch.items.size()));
    EXPECT_EQ(num_micro_batches, batch.num_micro_batches);
    for (size_t i = 0; i < batch.items.size(); ++i) {
      const ScoredRollout expected = TestRollout(batch.sequences[i]);
      EXPECT_EQ(batch.items[i]->rollout.response_ids, expected.rollout.response_ids);
      EXPECT_EQ(batch.items[i]->scores.weight, expected.scores.weight);
      result.num_tokens += static_cast<int64_t>(expected.rollout.response_ids.size());
    }
    group.Leave();
  });
  return ranks;
}

// The ranks know which sequences of the others are masked.
TEST(PartitionMiniBatch, MaskedSequencesHaveNoWeightAndCountInNoMean) {
  for (const auto& [mask_truncated, skips_missing] :
       std::vector<std::pair<bool, bool>>{{true, false}, {false, true}, {true, true}}) {
    std::vector<int64_t> counted;
    for (int64_t i = 0; i < kSequences; ++i) {
      const ScoredRollout item = TestRollout(i);
      const bool is_out = (mask_truncated && item.rollout.finish == FinishReason::kLength) ||
                          (skips_missing && item.lacks_teacher_prompt);
      counted.push_back(is_out ? 0 : static_cast<int64_t>(item.rollout.response_ids.size()));
    }
    const std::vector<double> weights = SequenceWeights(Aggregation::kTokenMean, counted);
    for (const int64_t world : {1, 2}) {
      for (const RankResult& rank :
           PartitionOnRanks(world, 0, true, mask_truncated, skips_missing)) {
        for (size_t i = 0; i < rank.sequences.size(); ++i)
          EXPECT_EQ(rank.row_weights[i], weights[rank.sequences[i]]) << rank.sequences[i];
      }
    }
  }
}

TEST(PartitionMiniBatch, RanksShareTheWorkAndKeepTheWeights) {
  std::vector<int64_t> lengths;
  int64_t all_tokens = 0;
  for (int64_t i = 0; i < kSequences; ++i) {
    lengths.push_back(static_cast<int64_t>(TestRollout(i).rollout.response_ids.size()));
    all_tokens += lengths.back();
  }
  const std::vector<double> weights = SequenceWeights(Aggregation::kTokenMean, lengths);
  for (const int64_t world : {1, 2, 3}) {
    std::set<int64_t> seen;
    for (const RankResult& rank : PartitionOnRanks(world, 0, true)) {
      EXPECT_TRUE(std::is_sorted(rank.sequences.begin(), rank.sequences.end()));
      for (size_t i = 0; i < rank.sequences.size(); ++i) {
        const int64_t sequence = rank.sequences[i];
        EXPECT_TRUE(seen.insert(sequence).second);
        EXPECT_EQ(rank.row_weights[i], weights[sequence]);
      }
      EXPECT_NEAR(static_cast<double>(rank.num_tokens), static_cast<double>(all_tokens) / world,
                  0.15 * static_cast<double>(all_tokens))
          << world;
    }
    EXPECT_EQ(seen.size(), static_cast<size_t>(kSequences));
  }
  // Without balancing, the second rank has most of the tokens.
  const auto uneven = PartitionOnRanks(2, 0, false);
  EXPECT_EQ(uneven[0].sequences, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_GT(uneven[1].num_tokens, 4 * uneven[0].num_tokens);
}

TEST(PartitionMiniBatch, FixedSharesAreTheSameOnAnyNumberOfRanks) {
  const auto one = PartitionOnRanks(1, 4, true);
  for (const int64_t world : {2, 4}) {
    std::vector<int64_t> sequences;
    std::vector<double> row_weights;
    size_t num_shares = 0;
    for (const RankResult& rank : PartitionOnRanks(world, 4, true)) {
      sequences.insert(sequences.end(), rank.sequences.begin(), rank.sequences.end());
      row_weights.insert(row_weights.end(), rank.row_weights.begin(), rank.row_weights.end());
      for (const auto& share : rank.micro_batches) {
        EXPECT_EQ(share.size(), one[0].micro_batches[num_shares++].size());
      }
    }
    EXPECT_EQ(sequences, one[0].sequences);
    EXPECT_EQ(row_weights, one[0].row_weights);
    EXPECT_EQ(num_shares, 4u);
  }
}

}  // namespace
}  // namespace taopd::testing
