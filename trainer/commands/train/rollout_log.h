// Logs some rollouts of each step as JSON Lines for inspection: RUN_DIR/rollouts.jsonl. A file of
// more than 64 MiB becomes rollouts.1.jsonl and replaces an older one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

// Not thread-safe. A failure to write is logged.
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

}  // namespace taopd
