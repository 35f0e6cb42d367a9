#include "trainer/commands/measure_student.h"

#include <utility>

#include "common/base/memory.h"
#include "trainer/eval/kl_evaluation.h"
#include "trainer/eval/local_source.h"

namespace taopd {

absl::StatusOr<EvalResult> MeasureStudent(const TrainConfig& config,
                                          const std::vector<PromptRecord>& records,
                                          const EvaluatedModel& model,
                                          std::function<absl::Status()> on_wait,
                                          const AccuracyPart& part, EvalJournal* journal) {
  if (config.eval.measure == EvalMeasure::kKl) {
    const int64_t top_k = config.eval.kl_top_k > 0 ? config.eval.kl_top_k : config.teacher.top_k;
    KlEvaluationOptions options = {
        .top_k = static_cast<int32_t>(top_k),
        .micro_batch_tokens = config.trainer.MicroBatchTokens(),
        .head_workspace_bytes = BytesOfMib(config.trainer.head_workspace_mb)};
    if (on_wait) options.on_wait = std::move(on_wait);
    options.journal = journal;
    EvalResult result;
    TAOPD_ASSIGN_OR_RETURN(result.metrics,
                           EvaluateKl(options, records, model.decoder, model.teacher));
    return result;
  }
  LocalSource source(model.engine, model.tokenizer);
  return EvaluateAccuracy({.config = &config.eval,
                           .seed = static_cast<uint64_t>(config.run.seed),
                           .problems = &records,
                           .source = &source,
                           .tokenizer = model.tokenizer,
                           .journal = journal,
                           .journal_may_fail = true,
                           .part = part,
                           .on_wait = std::move(on_wait)});
}

}  // namespace taopd
