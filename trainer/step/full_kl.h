// The full-vocabulary KL on a sample of the response rows: what the truncated objective leaves out.
#pragma once

#include "trainer/step/train_step.h"

namespace taopd {

// Sums over the sampled rows, in nats.
struct FullKl {
  double full_kl = 0;  // reverse KL over the whole vocabulary
  double ta_opd = 0;   // its bound on the support, the same rows
  int64_t num_rows = 0;
};

// Draws objective.full_kl_rows rows (all, where there are fewer) of sequences [0, end) of `batch`,
// named by run.seed and `step`, asks the teacher for their dense log-probs and evaluates both
// losses under the student's present weights. Each row is one request of its prefix. Runs
// context.on_wait while it waits; an error from it ends the wait with that error. REQUIRES:
// sequences [0, end) are scored; the teacher sends dense log-probs.
absl::Status MeasureFullKl(const StepContext& context, const ScoredBatch& batch,
                           const SupportOptions& support, int64_t end, int64_t step, FullKl* sums);

}  // namespace taopd
