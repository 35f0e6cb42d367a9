// A mini-batch whose loss or gradient was not finite, written aside for a look. No LibTorch here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

// Pointers are valid as long as the step that reports it.
struct BadBatch {
  int64_t step = 0;        // from 1
  int64_t mini_batch = 0;  // of the step, from 0
  double loss = 0;         // of the mini-batch
  double grad_norm = 0;
  std::vector<const ScoredRollout*> sequences;  // of the mini-batch
  // The first response token whose loss is not finite: its sequence in `sequences` and its row in
  // the response. Both are -1 if all losses are finite and only the gradient is not.
  int64_t bad_sequence = -1;
  int64_t bad_row = -1;
  std::string prompt_id;  // of bad_sequence; empty if there is none
};

// Writes DIR/step-000012-mini-1.json: the numbers above and, for each sequence, its token ids, its
// behavior log-probs and what the teacher said; numbers that are not finite are texts: "nan".
// Creates the directory. Writes nothing if the directory holds `max_batches` files already.
absl::Status WriteBadBatch(const BadBatch& batch, const std::string& dir, int64_t max_batches);

}  // namespace taopd
