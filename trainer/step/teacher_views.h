// The view that the teacher has of a step's rollouts: its own prompt in front of each response. It
// does not depend on LibTorch.
//
// A row's own prompt for the teacher (PromptRecord::teacher_prompt) is known from the start. A
// prompt with {sibling} needs a correct response to the same prompt: that of the next correct
// rollout of the prompt in sample order, cyclically. A rollout waits only until that choice is
// certain, so scoring overlaps generation, and the choice does not depend on timing.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "common/text/tokenizer/tokenizer.h"
#include "trainer/data/prompt_dataset.h"
#include "trainer/rollout/rollout_engine.h"

namespace taopd {

struct TeacherViewOptions {
  // The student's; must outlive the views. Used only for {sibling}.
  const Tokenizer* tokenizer = nullptr;
  // Grades a response. Called on the threads that finish rollouts, once per rollout. Used only for
  // {sibling}.
  std::function<bool(const PromptRecord& prompt, const Rollout& rollout)> is_correct;
  // A prompt that its sibling makes longer than this counts as missing.
  int64_t max_prompt_length = INT64_MAX;
  // Whether the loss leaves out responses whose prompt is missing.
  bool skips_missing = false;
};

struct TeacherView {
  int64_t index = 0;                // the rollout
  std::vector<int32_t> prompt_ids;  // empty if the teacher sees the student's prompt
  // The row lacks the teacher's prompt, or no other response is correct.
  bool is_missing = false;
};

// Any thread may call it.
class TeacherViews {
 public:
  // `prompts` are those of the rollouts, in groups of `group_size` rollouts of one prompt.
  TeacherViews(const TeacherViewOptions& options, std::vector<const PromptRecord*> prompts,
               int64_t group_size)
      : options_(options),
        prompts_(std::move(prompts)),
        group_size_(group_size),
        rollouts_(prompts_.size(), nullptr),
        grades_(prompts_.size(), Grade::kUnknown),
        waits_(prompts_.size(), false) {}

  // Records a finished rollout, which must live as long as the views. Returns the views that
  // are certain now: that of the rollout, those of others that have waited for it, or none. Each
  // view is returned once.
  std::vector<TeacherView> AddRollout(int64_t index, const Rollout& rollout);

 private:
  enum class Grade : int8_t { kUnknown, kWrong, kCorrect };
  // Fills `view` and returns true if it is certain which sibling the rollout has, or that it has
  // none.
  bool Decide(int64_t index, TeacherView* view) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the teacher's prompt with the response of rollout `sibling` in it.
  std::vector<int32_t> WithSibling(int64_t index, int64_t sibling) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TeacherViewOptions options_;
  const std::vector<const PromptRecord*> prompts_;
  const int64_t group_size_;
  mutable absl::Mutex mutex_;
  std::vector<const Rollout*> rollouts_ ABSL_GUARDED_BY(mutex_);
  std::vector<Grade> grades_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> waits_ ABSL_GUARDED_BY(mutex_);  // finished, and its view is not certain
};

}  // namespace taopd
