#include "trainer/step/balance/partition.h"

#include <numeric>

#include "trainer/dist/rank_metrics.h"
#include "trainer/step/balance/balance_shares.h"
#include "trainer/step/balance/move_rollouts.h"

namespace taopd {
namespace {

// The numbers of response tokens of a mini-batch's sequences.
struct Lengths {
  std::vector<int64_t> all;
  std::vector<int64_t> counted;  // 0 for a masked sequence
};

absl::StatusOr<Lengths> ResponseLengths(const PartitionInput& input, ProcessGroup* group) {
  Lengths lengths;
  lengths.all.resize(input.prompt_lengths.size(), 0);
  lengths.counted = lengths.all;
  const SequenceRange mine = input.shares.OwnRange(static_cast<int64_t>(lengths.all.size()));
  for (int64_t i = mine.begin; i < mine.end; ++i) {
    const ScoredRollout& item = input.item(i);
    lengths.all[i] = static_cast<int64_t>(item.rollout.response_ids.size());
    const bool is_masked = (input.mask_truncated && item.rollout.finish == FinishReason::kLength) ||
                           (input.skips_missing && item.lacks_teacher_prompt);
    lengths.counted[i] = is_masked ? 0 : lengths.all[i];
  }
  RankSums all;
  for (int64_t& length : lengths.all) all.Add(&length);
  for (int64_t& length : lengths.counted) all.Add(&length);
  TAOPD_RETURN_IF_ERROR(all.Reduce(group));
  return lengths;
}

// Returns the shares of all ranks for training.
std::vector<std::vector<int64_t>> SharesToTrain(const PartitionInput& input,
                                                const std::vector<int64_t>& response_lengths) {
  std::vector<std::vector<int64_t>> shares;
  for (const SequenceRange& range :
       input.shares.All(static_cast<int64_t>(response_lengths.size()))) {
    std::vector<int64_t>& share = shares.emplace_back(range.size());
    std::iota(share.begin(), share.end(), range.begin);
  }
  if (!input.balances) return shares;
  std::vector<double> costs;
  for (size_t i = 0; i < response_lengths.size(); ++i) {
    costs.push_back(SequenceCost(*input.model, input.prompt_lengths[i] + response_lengths[i] - 1,
                                 response_lengths[i]));
  }
  return BalanceShares(std::move(shares), costs);
}

// Returns the moves of rollouts that one rank generates and another one trains on.
std::vector<RolloutMove> MovesOf(const PartitionInput& input,
                                 const std::vector<std::vector<int64_t>>& shares,
                                 int64_t num_sequences) {
  std::vector<int64_t> from(num_sequences), to(num_sequences);
  const std::vector<SequenceRange> generated = input.shares.All(num_sequences);
  for (size_t s = 0; s < shares.size(); ++s) {
    const int64_t rank = input.shares.RankOf(static_cast<int64_t>(s));
    for (int64_t i = generated[s].begin; i < generated[s].end; ++i) from[i] = rank;
    for (const int64_t i : shares[s]) to[i] = rank;
  }
  std::vector<RolloutMove> moves;
  for (int64_t i = 0; i < num_sequences; ++i) {
    if (from[i] != to[i]) moves.push_back({i, from[i], to[i]});
  }
  return moves;
}

// Adds a share of this rank, cut into micro-batches. `weights` are those of the mini-batch's
// sequences. REQUIRES: the rollouts from other ranks are in batch->received.
void AddShare(const PartitionInput& input, const std::vector<int64_t>& share,
              const std::vector<double>& weights, RankMiniBatch* batch) {
  const auto first = static_cast<int64_t>(batch->items.size());
  std::vector<int64_t> num_tokens;
  for (const int64_t i : share) {
    const auto received = batch->received.find(i);
    const ScoredRollout& item =
        received != batch->received.end() ? received->second : input.item(i);
    batch->items.push_back(&item);
    batch->sequences.push_back(i);
    batch->row_weights.push_back(weights[i]);
    num_tokens.push_back(NumInputTokens(item.rollout));
  }
  std::vector<SequenceRange>& micro_batches = batch->micro_batches.emplace_back();
  int64_t begin = first;
  for (const int64_t end : MicroBatchEnds(num_tokens, input.micro_batch_tokens)) {
    micro_batches.push_back({begin, first + end});
    begin = first + end;
  }
  batch->num_micro_batches += static_cast<int64_t>(micro_batches.size());
}

}  // namespace

absl::StatusOr<RankMiniBatch> PartitionMiniBatch(const PartitionInput& input, ProcessGroup* group) {
  TAOPD_ASSIGN_OR_RETURN(const Lengths lengths, ResponseLengths(input, group));
  const std::vector<std::vector<int64_t>> shares = SharesToTrain(input, lengths.all);
  RankMiniBatch batch;
  TAOPD_ASSIGN_OR_RETURN(
      batch.received, MoveRollouts(MovesOf(input, shares, static_cast<int64_t>(lengths.all.size())),
                                   input.item, group));
  const std::vector<double> weights = SequenceWeights(input.aggregation, lengths.counted);
  for (size_t s = 0; s < shares.size(); ++s) {
    if (input.shares.RankOf(static_cast<int64_t>(s)) == group->rank())
      AddShare(input, shares[s], weights, &batch);
  }
  return batch;
}

}  // namespace taopd
