#include "trainer/eval/measure_student.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "common/base/memory.h"
#include "common/io/sha256.h"
#include "trainer/eval/kl_evaluation.h"
#include "trainer/eval/local_source.h"

namespace taopd {

absl::StatusOr<nlohmann::ordered_json> DescribeQuestions(TrainConfig config) {
  auto evaluation = nlohmann::ordered_json::object();
  const SettingTable table = DescribeSettings(config);
  for (const Setting& setting : table.settings()) {
    const bool counts =
        setting.path == "run.seed" || setting.path == "student.dtype" ||
        (setting.path.starts_with("eval.") && setting.path != "eval.num_samples") ||
        (setting.path.starts_with("data.") && !setting.path.starts_with("data.train") &&
         setting.path != "data.val" && setting.path != "data.max_response_length" &&
         setting.path != "data.shuffle");
    if (counts) evaluation[setting.path] = SettingText(setting.pointer);
  }
  for (const std::string& path : config.data.val) {
    TAOPD_ASSIGN_OR_RETURN(const std::string hash, Sha256OfFile(path));
    evaluation["data"].push_back({{"file", path}, {"sha256", hash}});
  }
  return evaluation;
}

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
