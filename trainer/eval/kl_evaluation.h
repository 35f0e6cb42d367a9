// Measures the student's distance to the teacher on given, held-out responses. `train` and `eval`
// share this code.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/metrics/sink.h"
#include "common/model/decoder.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/eval/journal.h"
#include "trainer/teacher/teacher_client.h"

namespace taopd {

struct KlEvaluationOptions {
  int32_t top_k = 16;                  // number of the teacher's tokens at each position
  int64_t micro_batch_tokens = 16384;  // maximum in one forward pass
  int64_t head_workspace_bytes = 256 << 20;
  // Runs about once a second while scores are pending, and after each forward pass but the last. An
  // error from it ends the evaluation and becomes its result; requests may still be open then.
  std::function<absl::Status()> on_wait = [] { return absl::OkStatus(); };
  // Holds the sums of forward passes, so that an interrupted evaluation continues with the same
  // bits. In its rows "problem" is the first record of the pass and "end" the record after its
  // last. Rows of other passes, and rows that lack a number, are ignored. A failure to write is
  // logged. May be null.
  EvalJournal* journal = nullptr;
};

// Asks the teacher to score the records' responses, after its own prompts if the records have
// them, and returns two metrics:
//   eval/kl_to_teacher  The mean over the response tokens of the reverse KL between student and
//                       teacher on the teacher's top-k tokens plus the tail, both at temperature 1,
//                       in nats. This is the value of ta_opd: a lower bound of the full KL, and
//                       equal to it if k is the size of the vocabulary.
//   eval/n              The number of records.
// Returns the first error of the teacher; requests may still be open then.
absl::StatusOr<Metrics> EvaluateKl(const KlEvaluationOptions& options,
                                   const std::vector<PromptRecord>& records, Decoder* student,
                                   TeacherClient* teacher);

}  // namespace taopd
