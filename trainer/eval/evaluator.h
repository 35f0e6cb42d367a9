// Held-out distance to the teacher on given responses, the same inside `train` and in `eval`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/decoder.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/accuracy.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

// Mean over response tokens of the reverse KL between student and teacher on the teacher's top-k
// plus the tail (the ta_opd value: a lower bound of the full KL, equal to it when k is the
// vocabulary), at temperature 1, on the given responses.
absl::StatusOr<EvalResult> EvaluateKl(int64_t top_k, int64_t micro_batch_tokens,
                                      int64_t head_workspace_bytes,
                                      const std::vector<PromptRecord>& records, Decoder* student,
                                      TeacherClient* teacher);

}  // namespace taopd
