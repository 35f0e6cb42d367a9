#include "trainer/commands/train/dry_run.h"

#include <absl/strings/str_format.h>

#include <iostream>

#include "common/model/out_of_memory.h"
#include "trainer/dist/rank_metrics.h"
#include "trainer/step/train_step.h"

namespace taopd {
namespace {

std::string MetricLines(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) text += absl::StrFormat("  %-32s %.9g\n", name, value);
  return text;
}

// Returns one rollout as text, or as ids if there is no tokenizer.
std::string RolloutText(const Tokenizer* tokenizer, const PromptRecord& prompt,
                        const Rollout& rollout) {
  std::string text = Concat("  --- a response to ", prompt.id, "\n");
  if (tokenizer != nullptr) {
    return text + tokenizer->Decode(rollout.prompt_ids, /*skip_special_tokens=*/false) +
           "\n  ---\n" + tokenizer->Decode(rollout.response_ids, /*skip_special_tokens=*/false) +
           "\n";
  }
  text += "  ids";
  for (const int32_t id : rollout.prompt_ids) text += Concat(" ", id);
  text += " |";
  for (const int32_t id : rollout.response_ids) text += Concat(" ", id);
  return text + "\n";
}

}  // namespace

absl::Status DryRun(TrainingParts& parts) {
  parts.context.on_bad_batch = [](const BadBatch&) {};
  std::vector<const PromptRecord*> batch;
  for (int64_t index : parts.data.order->Next(parts.config.data.train_batch_size))
    batch.push_back(&parts.data.prompts[index]);
  absl::StatusOr<StepResult> result;
  try {
    result = TrainOneStep(parts.context, parts.state.step, /*lr=*/0, batch);
  } catch (const std::exception& error) {
    if (!IsOutOfMemory(error)) throw;
    result = ResourceExhausted("out of memory: ", MessageOf(error), ". The plan was:\n",
                               parts.memory.table);
  }
  if (!result.ok()) {
    return WithExitCode(CodeOfFailedStep(result.status()),
                        Annotate(result.status(), "the step of the dry run"));
  }
  TAOPD_RETURN_IF_ERROR(CombineRankMetrics(parts.group, &result->metrics));
  if (parts.is_root()) {
    std::cout << "dry run: " << batch.size() << " of " << parts.data.prompts.size() << " prompts, "
              << static_cast<int64_t>(batch.size()) * parts.config.rollout.n
              << " responses; no weight has changed, and nothing is written\n"
              << MetricLines(result->metrics);
    if (!result->rollouts.empty()) {
      std::cout << RolloutText(parts.student.tokenizer.get(), *result->prompts.front(),
                               result->rollouts.front());
    }
    std::cout << std::flush;
  }
  if (result->num_skipped_updates > 0) {
    return WithExitCode(kExitNumerics,
                        Internal("the loss or its gradient is not finite in ",
                                 result->num_skipped_updates, " mini-batches of the dry run"));
  }
  return absl::OkStatus();
}

}  // namespace taopd
