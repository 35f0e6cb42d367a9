// Measures the full-vocabulary KL on a sample of the response rows, including the part that the
// truncated objective leaves out.
#pragma once

#include <cstdint>

#include "trainer/step/scored_batch.h"
#include "trainer/step/step_context.h"

namespace taopd {

// Sums over the sampled rows, in nats.
struct FullKlSums {
  double full_kl = 0;  // reverse KL over the whole vocabulary
  double ta_opd = 0;   // its lower bound on the support, on the same rows
  int64_t num_rows = 0;
};
template <typename Visit>
void ForEachSum(const Visit& visit, FullKlSums& sums) {
  visit(&sums.full_kl);
  visit(&sums.ta_opd);
  visit(&sums.num_rows);
}

// Draws `num_rows` response rows (all, if there are fewer) of sequences [0, end) of `batch`, with a
// seed derived from run.seed and `step`. Asks the teacher for their dense log-probs and evaluates
// both losses under the student's current weights. Each row is a separate request, which ends with
// the row's token. Calls context.on_wait about once a second while waiting for the teacher; an
// error from it ends the wait and is returned. REQUIRES: sequences [0, end) are scored, and the
// teacher supports dense log-probs.
absl::StatusOr<FullKlSums> MeasureFullKl(const StepContext& context, const ScoredBatch& batch,
                                         const SupportOptions& support, int64_t end,
                                         int64_t num_rows, int64_t step);

}  // namespace taopd
