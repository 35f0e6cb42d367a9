#include "trainer/commands/teacher/teacher_views.h"

#include "trainer/eval/accuracy.h"

namespace taopd {

TeacherViewOptions MakeTeacherViewOptions(const TrainConfig& config, const Student& student,
                                          const grading::Grader* grader) {
  TeacherViewOptions options;
  options.tokenizer = student.tokenizer.get();
  options.max_prompt_length = config.data.MaxTeacherPromptLength();
  options.skips_missing = config.data.teacher_prompt_missing == MissingTeacherPrompt::kSkip;
  options.is_right = [eval = config.eval, tokenizer = options.tokenizer, grader](
                         const PromptRecord& prompt, const Rollout& rollout) {
    if (prompt.answer.empty()) return false;
    const bool truncated = rollout.finish != FinishReason::kStop;
    return GradeResponse(*grader, eval, tokenizer->Decode(rollout.response_ids), truncated, prompt)
        .correct;
  };
  return options;
}

absl::Status CheckGroupsStayTogether(const TrainConfig& config, int64_t num_ranks) {
  if (!config.data.HasSibling() && !config.reward.IsOn()) return absl::OkStatus();
  const int64_t num_shares = config.dist.deterministic ? config.dist.shares : num_ranks;
  if (config.trainer.mini_batch_size % num_shares == 0) return absl::OkStatus();
  return InvalidArgument("trainer.mini_batch_size = ", config.trainer.mini_batch_size,
                         config.data.HasSibling()
                             ? ": {sibling} in data.teacher_prompt_template needs"
                             : ": the section reward needs",
                         " all responses to a prompt on one rank, so it must be a multiple of the ",
                         num_shares, config.dist.deterministic ? " dist.shares" : " ranks");
}

}  // namespace taopd
