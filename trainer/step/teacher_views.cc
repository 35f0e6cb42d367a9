#include "trainer/step/teacher_views.h"

#include <absl/strings/str_replace.h>

#include <utility>

namespace taopd {

std::vector<TeacherView> TeacherViews::AddRollout(int64_t index, const Rollout& rollout) {
  const PromptRecord& prompt = *prompts_[index];
  if (!prompt.teacher_prompt.has_sibling)
    return {{index, prompt.teacher_prompt.ids, prompt.teacher_prompt.is_plain()}};
  // Grading takes time, and other threads need not wait for it.
  const Grade grade = options_.is_correct(prompt, rollout) ? Grade::kCorrect : Grade::kWrong;
  absl::MutexLock lock(&mutex_);
  rollouts_[index] = &rollout;
  grades_[index] = grade;
  waits_[index] = true;
  std::vector<TeacherView> certain;
  const int64_t first = index / group_size_ * group_size_;
  for (int64_t i = first; i < first + group_size_; ++i) {
    TeacherView view;
    if (!waits_[i] || !Decide(i, &view)) continue;
    waits_[i] = false;
    certain.push_back(std::move(view));
  }
  return certain;
}

bool TeacherViews::Decide(int64_t index, TeacherView* view) const {
  view->index = index;
  const int64_t first = index / group_size_ * group_size_;
  for (int64_t distance = 1; distance < group_size_; ++distance) {
    const int64_t other = first + (index - first + distance) % group_size_;
    if (grades_[other] == Grade::kUnknown) return false;
    if (grades_[other] == Grade::kWrong) continue;
    view->prompt_ids = WithSibling(index, other);
    if (static_cast<int64_t>(view->prompt_ids.size()) <= options_.max_prompt_length) return true;
    view->prompt_ids.clear();
    break;
  }
  view->is_missing = true;
  return true;
}

std::vector<int32_t> TeacherViews::WithSibling(int64_t index, int64_t sibling) const {
  const TeacherPrompt& prompt = prompts_[index]->teacher_prompt;
  const std::string response = options_.tokenizer->Decode(rollouts_[sibling]->response_ids);
  return options_.tokenizer->Encode(absl::StrReplaceAll(prompt.text, {{kSiblingMark, response}}),
                                    prompt.add_special_tokens);
}

}  // namespace taopd
