// A mini-batch as one rank trains on it: its sequences, their weights, and the micro-batches.
//
// The sequences were generated in equal shares (trainer/dist/shares.h). Once their lengths are
// known to all ranks, the shares are evened out (balance_shares.h), and what another rank is to
// train on goes there. Losses have the weights of the whole mini-batch, so that changes nothing but
// the order of sums. The shares that result depend on the mini-batch and on the number of shares
// alone.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "common/model/config/model_config.h"
#include "trainer/dist/shares.h"
#include "trainer/step/loss/aggregation.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

struct DealInput {
  const ModelConfig* model = nullptr;
  Shares shares;
  Aggregation aggregation = Aggregation::kTokenMean;
  int64_t micro_batch_tokens = 0;
  // False: the shares stay as they are. For rollouts that are too large to be sent.
  bool evens_out = true;
  std::vector<int64_t> prompt_lengths;  // of all sequences of the mini-batch
  // What this rank has generated, by its number in the mini-batch.
  std::function<const ScoredRollout&(int64_t sequence)> item;
};

struct DealtMiniBatch {
  std::map<int64_t, ScoredRollout> received;  // from other ranks
  // This rank's shares, one after the other. Owned by `received` and by DealInput::item.
  std::vector<const ScoredRollout*> items;
  std::vector<int64_t> sequences;  // the number of each item in the mini-batch
  // Of each response row of each item, by the aggregation alone. Where one rank is alone, dealing
  // reads no scores: they may still be on their way.
  std::vector<double> row_weights;
  // Of each of this rank's shares: ranges of the items.
  std::vector<std::vector<SequenceRange>> micro_batches;
  int64_t num_micro_batches = 0;  // of all shares
};

// All ranks call it. Errors are those of the group.
absl::StatusOr<DealtMiniBatch> DealMiniBatch(const DealInput& input, ProcessGroup* group);

}  // namespace taopd
