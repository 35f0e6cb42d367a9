// Determines one rank's part of a mini-batch: its sequences, their weights, and the micro-batches.
//
// The sequences were generated in equal shares (trainer/dist/shares.h). Once all ranks know their
// lengths, the shares are balanced (balance_shares.h), and sequences move to the ranks that train
// on them. The weights of losses are those of the whole mini-batch, so moving sequences changes
// only the order of sums. The resulting shares depend only on the mini-batch and on the number of
// shares.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "common/base/status.h"
#include "common/dist/process_group.h"
#include "common/model/config/model_config.h"
#include "trainer/dist/shares.h"
#include "trainer/step/loss/micro_batches.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

struct PartitionInput {
  const ModelConfig* model = nullptr;
  Shares shares;
  Aggregation aggregation = Aggregation::kTokenMean;
  bool mask_truncated = false;  // gives weight 0 to responses that are cut at the limit
  // Gives weight 0 to responses that lack the teacher's prompt. The scores must have arrived,
  // because ScoredRollout::lacks_teacher_prompt is read.
  bool skips_missing = false;
  int64_t micro_batch_tokens = 0;
  // If false, the shares stay unchanged, for rollouts that are too large to be sent.
  bool balances = true;
  std::vector<int64_t> prompt_lengths;  // one per sequence of the mini-batch
  // Returns a rollout that this rank has generated, by its number in the mini-batch.
  std::function<const ScoredRollout&(int64_t sequence)> item;
};

struct RankMiniBatch {
  std::map<int64_t, ScoredRollout> received;  // from other ranks
  // This rank's shares, one after the other. Owned by `received` and by PartitionInput::item.
  std::vector<const ScoredRollout*> items;
  std::vector<int64_t> sequences;  // the number of each item in the mini-batch
  // The weight of each response row of each item, determined by the aggregation alone. With one
  // rank and without skips_missing, no score is read, so scores may still be pending.
  std::vector<double> row_weights;
  // The micro-batches of each of this rank's shares, as ranges of the items.
  std::vector<std::vector<SequenceRange>> micro_batches;
  int64_t num_micro_batches = 0;  // sum over all shares
};

// All ranks must call it. Returns the errors of the group.
absl::StatusOr<RankMiniBatch> PartitionMiniBatch(const PartitionInput& input, ProcessGroup* group);

}  // namespace taopd
