// The teacher's head: hidden states go in; the exact top-k, the log tail, and the log-prob and rank
// of sampled tokens come out. It works in chunks of rows, so that logits [N, V] never exist as a
// whole unless they are requested (dense). Logits are float32.
//
// The CPU uses kernels/cpu/head/scoring_rows.h. CUDA uses taopd/head/fused_scoring.h, except for
// float16, dense rows and a top_k above kMaxScoringTopK. Everything else, and both devices if the
// process does without the kernels (kernels/torch/kernel_choice.h), uses a composition of ATen
// operations (kernels/torch/composed/scoring_rows.h).
//
// Shapes: N rows, H hidden, V vocabulary, k top-k, M candidates.
#pragma once

#include <ATen/ATen.h>

#include "kernels/torch/head/head_gemm.h"
#include "kernels/torch/scoring_output.h"

namespace taopd {

// Scores every row of hidden. sampled_ids_N (int32 [N]) and candidate_ids_NM (int32 [N, M]) may be
// undefined; their ids are in [0, V). Throws c10::Error on wrong shapes, dtypes, devices, ids or
// options. A row's numbers depend only on that row's logits. On the CPU, the logits do not depend
// on the other rows either; on CUDA, the matrix product may round them differently.
ScoringOutput ScoreRowsOfHead(const at::Tensor& hidden_NH, const HeadMatrix& head,
                              const at::Tensor& sampled_ids_N, const at::Tensor& candidate_ids_NM,
                              const ScoringOptions& options);

// Like ScoreRowsOfHead, from logits [N, V], float32 on any device, whose contents are overwritten.
ScoringOutput ScoreRowsOfLogits(const at::Tensor& logits_NV, const at::Tensor& sampled_ids_N,
                                const at::Tensor& candidate_ids_NM, const ScoringOptions& options);

}  // namespace taopd
