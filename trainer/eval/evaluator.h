// Held-out evaluation, the same inside `train` and in `eval`: generated answers that are graded, or the
// distance to the teacher on given responses.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/metrics/sink.h"
#include "common/model/decoder.h"
#include "common/text/tokenizer.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/grading/grader.h"
#include "trainer/rollout/rollout_engine.h"
#include "trainer/teacher/teacher_client.h"
#include "trainer/train_config.h"

namespace taopd {

struct EvalSample {
  std::string id;
  std::string prompt;
  std::string response;
  std::string answer;
  bool correct = false;
};

struct EvalResult {
  // eval/accuracy, eval/accuracy_low, eval/accuracy_high (95 %), eval/n, eval/response_length_mean,
  // eval/truncated_share; or eval/kl_to_teacher, eval/n.
  Metrics metrics;
  std::vector<EvalSample> samples;  // every response, or the first eval.num_samples, as asked
};

// A response to `problem` graded; tokens become text without the special ones.
Verdict GradeRollout(const Grader& grader, const EvalConfig& config, const Tokenizer& tokenizer,
                     const Rollout& rollout, const PromptRecord& problem);

// Avg@n over the problems: the share of right responses. The interval is Wilson's over problems with
// each problem's mean as its score (responses to one problem are not independent). Seeds depend on
// (seed, problem, sample) only, so that two evaluations of a run use the same random numbers.
// Every problem must have an answer. `keep_all_samples`: else eval.num_samples of them.
absl::StatusOr<EvalResult> EvaluateAccuracy(const EvalConfig& config, uint64_t seed,
                                            const std::vector<PromptRecord>& problems, const Tokenizer& tokenizer,
                                            RolloutEngine* engine, bool keep_all_samples);

// Mean over response tokens of the reverse KL between student and teacher on the teacher's top-k plus the
// tail (the ta_opd value: a lower bound of the full KL, equal to it when k is the vocabulary), at
// temperature 1, on the given responses.
absl::StatusOr<EvalResult> EvaluateKl(int64_t top_k, int64_t micro_batch_tokens, int64_t head_workspace_bytes,
                                      const std::vector<PromptRecord>& records, Decoder* student,
                                      TeacherClient* teacher);

}  // namespace taopd
