// The head of a model whose vocabulary is cut into slices: every process computes the logits of its
// own ids, and rank 0 merges the results.
//
// Shapes: N rows, H hidden, V vocabulary, S ids of this process's slice, k top-k, M candidates.
#pragma once

#include <ATen/ATen.h>

#include "common/model/parallel/collectives.h"
#include "kernels/torch/head/scoring_head.h"

namespace taopd {

// Returns what ScoreRowsOfHead returns for the head of the whole model. Every process calls it with
// the same arguments except for its own slice of the head. Only rank 0's output is filled in.
//
// Top-k, tail, sampled log-probs, entropy and the normalizer are merged in double from those of the
// slices, so k + 4 numbers per row and process are sent. Ranks, candidates and dense rows need the
// logits of other processes row by row; for them, the logits are gathered in chunks of
// options.workspace_bytes.
ScoringOutput ScoreRowsOfShards(const at::Tensor& hidden_NH, const HeadMatrix& head_SH,
                                int64_t vocab_size, const at::Tensor& sampled_ids_N,
                                const at::Tensor& candidate_ids_NM, const ScoringOptions& options,
                                Collectives* group);

// Returns logits_NS of all processes side by side on rank 0, [N, V]; undefined on the others.
at::Tensor GatherLogits(const at::Tensor& logits_NS, int64_t vocab_size, Collectives* group);

}  // namespace taopd
