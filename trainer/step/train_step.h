// One training step, from prompts to updated weights: roll out, score, loss and gradients, update.
// Train reads top to bottom like the algorithm.
//
// Owns nothing; not thread-safe. Everything a step needs is given, so a step is a pure function of
// (weights, optimizer state, prompts, step number) on the CPU, bit for bit, whatever the order in
// which rollouts and scores arrive.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/metrics/sink.h"
#include "common/model/decoder.h"
#include "kernels/torch/head/student_head.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/optim/adamw.h"
#include "trainer/step/head_targets.h"
#include "trainer/step/scored_batch.h"
#include "trainer/step/step_types.h"
#include "trainer/train_config.h"

namespace taopd {

struct StepContext {
  const TrainConfig* config = nullptr;
  Decoder* student = nullptr;
  AdamW* optimizer = nullptr;
  RolloutEngine* rollout_engine = nullptr;
  TeacherClient* teacher = nullptr;
  HeadOptions head;  // objective, temperature, workspace
  Aggregation aggregation = Aggregation::kTokenMean;
  Clock* clock = Clock::Real();
  // Runs about once a second while the step waits for scores; an error from it abandons the step.
  std::function<absl::Status()> on_wait = [] { return absl::OkStatus(); };
};

struct StepResult {
  Metrics metrics;                  // by the names of metrics.jsonl
  int64_t num_skipped_updates = 0;  // non-finite loss or gradients
  std::vector<Rollout> rollouts;    // [prompts * n], for accuracy and samples
};

// A failed step: whether it had already changed the weights (then the state is between two
// checkpoints and must not be saved).
struct StepFailure {
  absl::Status status;
  bool weights_changed = false;
};

// Trains on `prompts` as step number `step` (0-based) with learning rate `lr`. On failure *failure
// is filled and the result is empty.
std::optional<StepResult> Train(const StepContext& context, int64_t step, double lr,
                                const std::vector<const PromptRecord*>& prompts,
                                StepFailure* failure);

// The rollouts a step asks for: n per prompt, seeds named by (run.seed, step, prompt, sample).
std::vector<RolloutRequest> MakeRolloutRequests(const TrainConfig& config, int64_t step,
                                                const std::vector<const PromptRecord*>& prompts);

// Whose tokens the configuration's objective compares, and how many.
SupportOptions MakeSupportOptions(const TrainConfig& config, int64_t vocab_size);

// Loss and gradients of scored sequences [begin, end): forward, fused head, backward. weights[i -
// begin] weighs each response row of sequence i. Gradients go to the parameters' .grad. Row metrics
// are those of the support; where that is the whole vocabulary, those of the teacher's top-k, in a
// second pass.
struct RowSums {
  double loss = 0;           // sum over rows, unweighted
  double weighted_loss = 0;  // what is minimised
  double head_metrics[kNumHeadMetrics] = {};
  double term_loss[kMaxObjectiveTerms] = {};  // weighted
  double behavior_gap = 0;                    // sum of behavior log-prob minus log p(y)
  double shared = 0;   // of a union: tokens of the teacher that are the student's, too
  double ta_loss = 0;  // of ta_opd on the teacher's top-k, where the loss has the whole vocabulary
  int64_t num_rows = 0;
};
void ForwardBackward(Decoder* student, const HeadOptions& head, const ScoredBatch& batch,
                     int64_t begin, int64_t end, const std::vector<double>& weights, RowSums* sums);

}  // namespace taopd
