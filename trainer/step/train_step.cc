#include "trainer/step/train_step.h"

#include "trainer/step/step_in_progress.h"

namespace taopd {
namespace {

// Checks that the rollouts are answers to these prompts.
absl::Status CheckPrompts(const PendingStep& pending, const TrainConfig& config,
                          const std::vector<const PromptRecord*>& prompts) {
  for (const auto& [sequence, item] : pending.rollouts) {
    if (item->rollout.prompt_ids != prompts[sequence / config.rollout.n]->prompt_ids) {
      return DataLoss("rollout ", sequence,
                      " of the pending step does not belong to its prompt in data.train");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StepResult> TrainOneStep(const StepContext& context, int64_t step_number, double lr,
                                        const std::vector<const PromptRecord*>& prompts,
                                        const PendingStep* pending) {
  if (pending != nullptr) {
    const absl::Status fits = CheckPrompts(*pending, *context.config, prompts);
    TAOPD_RETURN_IF_ERROR(context.group->AgreeOnStatus(fits));
  }
  // 1. Roll out with the current weights, or take the rollouts that weights of an earlier step have
  // generated. Each finished rollout goes to the teacher immediately. A step that was left between
  // two mini-batches has its scored rollouts already.
  StepInProgress step(context, step_number, lr, prompts, pending);

  for (int64_t mini_batch = step.first_mini_batch(); mini_batch < step.num_mini_batches();
       ++mini_batch) {
    // 2. Wait for this mini-batch's rollouts. Generation of the others and scoring continue.
    if (absl::Status generated = step.WaitForRollouts(mini_batch); !generated.ok()) {
      return step.Abandon(generated);
    }

    // 3. Compute loss and gradients in micro-batches of bounded size, as soon as the scores have
    // arrived. A run that should stop leaves the step here, or continues if the rest is short.
    const absl::StatusOr<RowSums> sums = step.ComputeGradients(mini_batch);
    if (absl::IsCancelled(sums.status()) && step.weights_changed())
      return step.StopBefore(mini_batch);
    if (!sums.ok()) return step.Abandon(sums.status());

    // 4. Update once no rollout reads the weights any more and no score is missing. Skip the update
    // if its numbers are not finite.
    absl::Status done = step.WaitForAllScores();
    if (done.ok()) done = step.UpdateOrSkip(*sums, mini_batch);
    if (!done.ok()) return step.Abandon(done);
  }

  // 5. Start the rollouts that the new weights generate, if rollouts are generated ahead.
  TAOPD_RETURN_IF_ERROR(step.StartLaterRollouts());

  // 6. Report.
  return step.Finish();
}

}  // namespace taopd
