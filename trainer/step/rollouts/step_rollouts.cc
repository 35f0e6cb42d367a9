#include "trainer/step/rollouts/step_rollouts.h"

#include <utility>

#include "trainer/step/rollouts/rollout_requests.h"
#include "trainer/step/support.h"

namespace taopd {
namespace {

// Returns how the rollouts of step `step` (0-based) with these prompts are scored.
BatchScoring ScoringOf(const StepContext& context, int64_t step,
                       const std::vector<const PromptRecord*>& prompts) {
  const int64_t n = context.config->rollout.n;
  BatchScoring scoring = {
      .teacher = context.teacher,
      .support = MakeSupportOptions(*context.config, context.student->config().vocab_size),
      .name = Concat("step-", step + 1)};
  if (context.group->world_size() > 1) scoring.name += Concat("-rank-", context.group->rank());
  scoring.timeline = context.timeline;
  if (context.teacher_views != nullptr) {
    scoring.views = std::make_unique<TeacherViews>(*context.teacher_views,
                                                   PromptsOfSequences(context, prompts), n);
  }
  if (context.rewards != nullptr) {
    scoring.rewards = std::make_unique<StepRewards>(
        *context.rewards, PromptsOfSequences(context, prompts), n, scoring.name);
  }
  return scoring;
}

}  // namespace

std::vector<const PromptRecord*> PromptsOfSequences(
    const StepContext& context, const std::vector<const PromptRecord*>& prompts) {
  std::vector<const PromptRecord*> mine;
  for (const int64_t i : SequencesOfStep(*context.config, context.shares)) {
    mine.push_back(prompts[i / context.config->rollout.n]);
  }
  return mine;
}

std::shared_ptr<ScoredBatch> StartRollouts(const StepContext& context, int64_t step,
                                           const std::vector<const PromptRecord*>& prompts,
                                           int64_t policy_version) {
  std::vector<RolloutRequest> all = MakeRolloutRequests(*context.config, step, prompts);
  std::vector<RolloutRequest> mine;
  for (const int64_t i : SequencesOfStep(*context.config, context.shares)) {
    mine.push_back(std::move(all[i]));
    mine.back().policy_version = policy_version;
  }
  return ScoredBatch::Start(context.rollout_engine, std::move(mine),
                            ScoringOf(context, step, prompts));
}

absl::StatusOr<std::shared_ptr<ScoredBatch>> ContinueRollouts(
    const StepContext& context, const StepInFlight& step,
    const std::vector<const PromptRecord*>& prompts) {
  std::vector<ScoredRollout> items;
  std::vector<bool> scored;
  for (const int64_t i : SequencesOfStep(*context.config, context.shares)) {
    const PromptRecord& prompt = *prompts[i / context.config->rollout.n];
    items.push_back(*step.rollouts.at(i));
    items.back().rollout.source = prompt.source;
    if (items.back().rollout.prompt_ids != prompt.prompt_ids) {
      return DataLoss("rollout ", i, " of step ", step.step + 1,
                      " in the checkpoint does not belong to its prompt in data.train");
    }
    scored.push_back(step.scored.contains(i));
  }
  return ScoredBatch::Continue(std::move(items), std::move(scored),
                               ScoringOf(context, step.step, prompts));
}

}  // namespace taopd
