// Computes the loss and gradients of one micro-batch.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/status.h"
#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/step/scored_rollout.h"
#include "trainer/step/timing/phase_times.h"

namespace taopd {

// The distance between the log-probs of two engines on the sampled tokens: |behavior - own|. If the
// engine that generates computes differently from the one that trains, the rollouts seem to come
// from another policy. Holds sums and counts, which can be added over ranks. Not thread-safe.
struct LogProbGaps {
  // Bin 0 is for gaps below kSmallest. Each kBinsPerDecade further bins cover a factor of 10, and
  // the last bin holds all larger gaps as well.
  static constexpr double kSmallest = 1e-7;
  static constexpr int kBinsPerDecade = 16;
  static constexpr int kNumBins = 9 * kBinsPerDecade + 1;

  double sum = 0;
  int64_t counts[kNumBins] = {};

  void Add(double gap) {
    const double size = std::abs(gap);
    sum += size;
    // A gap that is not a number goes into the last bin.
    const double bin = size < kSmallest ? 0 : std::log10(size / kSmallest) * kBinsPerDecade + 1;
    ++counts[bin < kNumBins ? static_cast<int>(bin) : kNumBins - 1];
  }
  // Returns the upper edge of the quantile's bin, which is at most 16 % above the quantile, or
  // 0 for gaps below kSmallest. NaN if there are none.
  double Quantile(double share) const {
    int64_t num = 0;
    for (const int64_t count : counts) num += count;
    if (num == 0) return NAN;
    const double rank = share * static_cast<double>(num);
    int64_t seen = 0;
    for (int bin = 0; bin < kNumBins; ++bin) {
      seen += counts[bin];
      if (static_cast<double>(seen) < rank) continue;
      return bin == 0 ? 0 : kSmallest * std::pow(10.0, static_cast<double>(bin) / kBinsPerDecade);
    }
    return NAN;
  }
};

// Sums over response rows. They are added row by row in double, in the order of the rows, so they
// do not depend on the micro-batches.
struct RowSums {
  double loss = 0;           // unweighted
  double weighted_loss = 0;  // the minimized loss
  double head_metrics[kNumHeadMetrics] = {};
  double term_loss[kMaxObjectiveTerms] = {};  // loss of each term of the objective, with its weight
  // Behavior log-prob minus log p of the response token, without the given rows.
  double behavior_gap = 0;
  LogProbGaps gaps;  // the distribution of these gaps
  // The loss of ta_opd on the teacher's most probable tokens. Filled only if the objective compares
  // on the whole vocabulary.
  double ta_loss = 0;
  int64_t num_shared = 0;  // SupportScores::num_shared
  int64_t num_rows = 0;
  int64_t num_given_rows = 0;  // rows of given responses, which have no behavior policy
  // Sums of the importance ratios rho = p(y)/p_behavior(y), and of their squares, before any guard
  // and without the given rows.
  double rho = 0;
  double rho_square = 0;
  int64_t num_vetoed = 0;  // responses left out by ForwardBackwardOptions::veto_rho_below
  // Filled by each call for its own sequences: the first row whose loss is not finite, as the
  // position of its sequence in the call and its row in that response; -1 if there is none.
  int64_t bad_sequence = -1;
  int64_t bad_row = -1;
};

// Calls visit(&sums.x) for each sum x, a double or an int64_t, always in this order. The bad row is
// not a sum.
template <typename Visit>
void ForEachSum(const Visit& visit, RowSums& sums) {
  visit(&sums.loss);
  visit(&sums.weighted_loss);
  for (double& metric : sums.head_metrics) visit(&metric);
  for (double& loss : sums.term_loss) visit(&loss);
  visit(&sums.behavior_gap);
  visit(&sums.gaps.sum);
  for (int64_t& count : sums.gaps.counts) visit(&count);
  visit(&sums.ta_loss);
  visit(&sums.num_shared);
  visit(&sums.num_rows);
  visit(&sums.num_given_rows);
  visit(&sums.rho);
  visit(&sums.rho_square);
  visit(&sums.num_vetoed);
}

struct ForwardBackwardOptions {
  // A response with a token whose rho is below this number gets the weight 0, because its behavior
  // policy is too far from the current policy for its ratios to be meaningful. 0 means never.
  double veto_rho_below = 0;
  PhaseTimes* times = nullptr;  // times are not measured if null
  // Called after the forward pass, before the sequences' scores are read, in order to wait for
  // them. Its error ends the call. May be empty.
  std::function<absl::Status()> before_scores;
  // on_layer_backward gets one call in addition to the decoder's: the last, with kEmbeddingLayer.
  ForwardOptions forward;
};

// Runs the student's forward pass, the fused head and the backward pass over `sequences`, and adds
// the results to *sums. weights[i] is the weight of each response row of sequence i; it is
// multiplied by the weight of the sequence's teacher (SupportScores::weight). The gradients are
// added to the parameters' .grad (trainer/optim/flat_gradients.h). The metrics are those of the
// support. If the objective compares on the whole vocabulary, they are those of the teacher's most
// probable tokens, from a second pass over the head. Returns the error of options.before_scores,
// and changes nothing in that case. LibTorch's exceptions pass through.
absl::Status ForwardBackward(Decoder* student, const HeadOptions& head,
                             const std::vector<const ScoredRollout*>& sequences,
                             const std::vector<double>& weights, RowSums* sums,
                             const ForwardBackwardOptions& options = {});

}  // namespace taopd
