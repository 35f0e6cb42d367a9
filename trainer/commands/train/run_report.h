// The report of a distillation run on a step: its metrics, including those of all ranks, the live
// status, and a warning if answers are never found.
//
// All ranks call the same functions in the same order. Not thread-safe.
#pragma once

#include <string>

#include "trainer/commands/train/training_parts.h"
#include "trainer/step/train_step.h"

namespace taopd {

// Logs some rollouts of each step as JSON Lines for inspection: RUN_DIR/rollouts.jsonl. A large
// file becomes rollouts.1.jsonl and replaces an older one. A failure to write is logged.
class RolloutLog {
 public:
  // Writes `per_step` rollouts of each step (0 for none), spread over the step's prompts.
  RolloutLog(std::string run_dir, int64_t per_step)
      : run_dir_(std::move(run_dir)), per_step_(per_step) {}

  // Each line has: step, prompt_id, prompt and response as text (as ids without a tokenizer),
  // num_tokens, truncated, mean_log_prob (of the response tokens under the policy that sampled
  // them). `rollouts` has the same number of rollouts for each prompt. A resumed run appends, so
  // steps that it repeats occur twice.
  void Write(int64_t step, const std::vector<const PromptRecord*>& prompts,
             const std::vector<Rollout>& rollouts, const Tokenizer* tokenizer);

 private:
  const std::string run_dir_;
  const int64_t per_step_;
};

class RunReport {
 public:
  // `parts` must outlive the object.
  explicit RunReport(TrainingParts* parts);

  // Adds metrics to those of the step, makes them those of rank 0 on all ranks, and writes them.
  absl::Status Write(const StepResult& result, Metrics* metrics);

 private:
  // The grades of rollouts.
  struct Answers {
    int64_t graded = 0, correct = 0, found = 0;
    // A response in which no answer was found, and what was expected.
    std::string unread, expected;
  };
  Answers Grade(const StepResult& result) const;
  // `answers` are of this step and all ranks.
  void WarnIfNeverFound(const Answers& answers);
  void UpdateStatus(const Metrics& metrics);

  TrainingParts& parts_;
  RolloutLog rollout_log_;
  int64_t num_graded_ = 0, num_found_ = 0;  // numbers of responses since the start of the process
  bool has_warned_ = false;
};

}  // namespace taopd
