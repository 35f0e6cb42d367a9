// Records a mini-batch whose loss or gradient was not finite, for inspection. It does not depend on
// LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

// The pointers are valid as long as the step that reports it.
struct BadBatch {
  int64_t step = 0;        // counted from 1
  int64_t mini_batch = 0;  // within the step, counted from 0
  double loss = 0;         // of the mini-batch
  double grad_norm = 0;
  std::vector<const ScoredRollout*> sequences;  // of the mini-batch
  // The first response token whose loss is not finite: its sequence in `sequences` and its row in
  // the response. Both are -1 if all losses are finite and only the gradient is not.
  int64_t bad_sequence = -1;
  int64_t bad_row = -1;
  std::string prompt_id;  // of bad_sequence; empty if there is none
};

// Writes DIR/step-000012-mini-1.json with the numbers above and, for each sequence, its token ids,
// its behavior log-probs and the teacher's scores. Numbers that are not finite become texts such as
// "nan". Creates the directory. Writes nothing if the directory holds `max_batches` files already.
absl::Status WriteBadBatch(const BadBatch& batch, const std::string& dir, int64_t max_batches);

}  // namespace taopd
