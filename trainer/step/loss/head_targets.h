// Makes the tensors of a forward pass and of the fused head from scored rollouts.
//
// Shapes: N response rows of the given sequences, T input tokens of all of them together, k support
// size, V vocabulary, H hidden size. All sequences of one call have the same support size.
#pragma once

#include <vector>

#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/step/scored_rollout.h"

namespace taopd {

// Returns the head targets of the sequences' response rows, on `device`. weights[i] is the weight
// of each row of sequence i.
HeadTargets MakeHeadTargets(const std::vector<const ScoredRollout*>& sequences,
                            const std::vector<double>& weights, at::Device device);

// Replaces the support of `targets` by the whole vocabulary: [N, V] ids, and log-probs from the
// sequences' dense_log_probs. No tail remains. REQUIRES: each sequence has dense_log_probs with
// `vocab_size` numbers per row.
HeadTargets WithFullVocabulary(HeadTargets targets,
                               const std::vector<const ScoredRollout*>& sequences,
                               int64_t vocab_size);

struct StudentInput {
  PackedBatch batch;  // each prompt followed by its response without the last token
  at::Tensor rows_N;  // int64, the row of the pack that predicts each response token
};
// Uses only the sequences' rollouts. With share_prompts, a prompt that successive sequences share
// is in the pack once, without its last token, which begins each of the sequences instead. This
// reduces T but not N (PackedBatch::parents).
StudentInput MakeStudentInput(const std::vector<const ScoredRollout*>& sequences, at::Device device,
                              bool share_prompts = false);

// Runs the student over the sequences and returns hidden_NH, the hidden states that predict the
// response tokens.
at::Tensor ForwardResponses(Decoder* student, const std::vector<const ScoredRollout*>& sequences,
                            const ForwardOptions& options = {});

// Returns the unweighted sum of the rows' losses in float64. Computes no gradients.
double SumRowLosses(const Decoder& student, const at::Tensor& hidden_NH, const HeadTargets& targets,
                    const HeadOptions& head);

}  // namespace taopd
