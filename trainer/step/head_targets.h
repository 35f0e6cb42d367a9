// From scored rollouts to the tensors of a forward pass and of the fused head.
//
// Shapes: N response rows of the given sequences, k support size, V vocabulary.
#pragma once

#include <utility>
#include <vector>

#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/step/step_types.h"

namespace taopd {

// Head targets of the response rows of the given sequences, on `device`. weights[i] weighs each row
// of sequence i.
HeadTargets MakeHeadTargets(const std::vector<const ScoredRollout*>& sequences,
                            const std::vector<double>& weights, at::Device device);

// The same with the whole vocabulary as support, from the sequences' dense log-probs, which leave
// no tail: [N, V] ids and log-probs. REQUIRES: every sequence has dense_log_probs of `vocab_size`
// numbers a row.
HeadTargets WithFullVocabulary(HeadTargets targets,
                               const std::vector<const ScoredRollout*>& sequences,
                               int64_t vocab_size);

// Packed input (prompt and response but its last token) and the row of the pack that predicts each
// response token.
struct StudentInput {
  PackedBatch batch;
  at::Tensor rows_N;  // int64
};
StudentInput MakeStudentInput(
    const std::vector<std::pair<const std::vector<int32_t>*, const std::vector<int32_t>*>>&
        sequences,
    at::Device device);

}  // namespace taopd
