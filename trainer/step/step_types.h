// The records that flow through a training step. No LibTorch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/rollout/rollout_engine.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// A rollout with the teacher's scores of its response: ready to train.
struct ScoredRollout {
  Rollout rollout;
  TeacherScores scores;  // R rows, one a response token; on the support (support.h)
};

// How positions are summed into one loss; as in verl.
enum class Aggregation { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum };
absl::StatusOr<Aggregation> ParseAggregation(const std::string& name);

// Weight of each response token of sequence i in the loss of a mini-batch of sequences with these
// response lengths. The weights of a mini-batch do not depend on how it is cut into micro-batches.
std::vector<double> SequenceWeights(Aggregation aggregation,
                                    const std::vector<int64_t>& response_lengths);

// Cuts items 0..n-1 (tokens each) into consecutive runs of at most `budget_tokens`; an item longer
// than the budget goes alone. Returns the end index of each run.
std::vector<int64_t> MicroBatchEnds(const std::vector<int64_t>& tokens, int64_t budget_tokens);

}  // namespace taopd
