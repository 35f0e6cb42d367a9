// Computes the scores of one sequence from its hidden states.
//
// Shapes: P tokens of the request, H hidden size, V vocabulary size.
#pragma once

#include <ATen/ATen.h>

#include "common/engine/engine.h"

namespace taopd {

// hidden_PH holds the hidden states of all tokens of the request; row t - 1 predicts token t.
// `workspace_bytes` limits the memory of one chunk's logits. Returns INTERNAL if the model's logits
// are not finite. Throws c10::Error as LibTorch does. REQUIRES: request.score is set and valid.
absl::StatusOr<ScoreRows> ScoreSequence(const at::Tensor& hidden_PH, const at::Tensor& lm_head_VH,
                                        const InferenceRequest& request, int64_t workspace_bytes);

}  // namespace taopd
