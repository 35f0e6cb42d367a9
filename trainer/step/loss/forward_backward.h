// Loss and gradients of one micro-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

// Sums over response rows. They are added up row by row in double, in the order of the rows, so
// they do not depend on how a mini-batch is cut into micro-batches.
struct RowSums {
  double loss = 0;           // unweighted
  double weighted_loss = 0;  // what is minimised
  double head_metrics[kNumHeadMetrics] = {};
  double term_loss[kMaxObjectiveTerms] = {};  // of each term of the objective, with its weight
  double behavior_gap = 0;                    // behavior log-prob minus log p of the response token
  // The loss of ta_opd on the teacher's most probable tokens. Filled only if the objective compares
  // on the whole vocabulary.
  double ta_loss = 0;
  int64_t num_shared = 0;  // SupportScores::num_shared
  int64_t num_rows = 0;
};

// Runs the student's forward pass, the fused head and the backward pass over `sequences`, and adds
// the results to *sums. weights[i] is the weight of each response row of sequence i. The gradients
// are added to the parameters' .grad. The metrics are those of the support. If the objective
// compares on the whole vocabulary, they are those of the teacher's most probable tokens, from a
// second pass over the head.
void ForwardBackward(Decoder* student, const HeadOptions& head,
                     const std::vector<const ScoredRollout*>& sequences,
                     const std::vector<double>& weights, RowSums* sums);

}  // namespace taopd
