// The head of a model whose vocabulary is cut into slices: every process computes the logits of its
// own ids, and rank 0 merges.
//
// Shapes: N rows, H hidden, V vocabulary, S ids of this process's slice, k top-k, M candidates.
#pragma once

#include <ATen/ATen.h>

#include "common/model/parallel/collectives.h"
#include "kernels/torch/head/scoring_head.h"

namespace taopd {

// ScoreRowsOfHead with the head of the whole model. Every process calls it with the same arguments
// but its own slice of the head; the output of rank 0 is filled, that of the others is not.
//
// Top-k, tail, sampled log-probs, entropy and the normaliser are merged from those of the slices,
// in double: what travels is k + 4 numbers a row and process. Ranks, candidates and dense rows need
// other processes' logits row by row; for them the logits are gathered in chunks of
// options.workspace_bytes.
ScoringOutput ScoreRowsOfShards(const at::Tensor& hidden_NH, const HeadMatrix& head_SH,
                                int64_t vocab_size, const at::Tensor& sampled_ids_N,
                                const at::Tensor& candidate_ids_NM, const ScoringOptions& options,
                                Collectives* group);

// logits_NS of all processes side by side on rank 0, [N, V]; undefined on the others.
at::Tensor GatherLogits(const at::Tensor& logits_NS, int64_t vocab_size, Collectives* group);

}  // namespace taopd
