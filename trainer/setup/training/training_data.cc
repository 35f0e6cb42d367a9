#include "trainer/setup/training/training_setup.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "trainer/eval/accuracy.h"
#include "trainer/setup/connect_teacher.h"
#include "trainer/setup/prompts.h"

namespace taopd {
namespace {

// The names of the evaluation's metrics are known once data.val is read.
absl::Status CheckBestMetric(const TrainingParts& parts) {
  const std::string& name = parts.config.trainer.best_metric;
  if (name.empty()) return absl::OkStatus();
  if (!parts.data.IsEvaluated(parts.config.eval)) {
    return InvalidArgument("trainer.best_metric = ", name,
                           ": nothing is evaluated: eval.measure is none or data.val is empty");
  }
  const std::vector<std::string> known =
      parts.config.eval.measure == EvalMeasure::kKl
          ? std::vector<std::string>{"eval/kl_to_teacher", "eval/n"}
          : AccuracyMetricNames(parts.config.eval, parts.data.problems);
  if (std::ranges::find(known, name) != known.end()) return absl::OkStatus();
  return InvalidArgument("trainer.best_metric = ", name,
                         ": is not among what the evaluations measure", DidYouMean(name, known),
                         ": ", absl::StrJoin(known, ", "));
}

Metrics DataMetrics(const TrainConfig& config, const PromptDataset& dataset) {
  Metrics metrics = {{"data/prompts", static_cast<double>(dataset.records.size())},
                     {"data/overlong_dropped", static_cast<double>(dataset.num_overlong())},
                     {"data/truncated", static_cast<double>(dataset.num_truncated())},
                     {"data/unknown_bytes", static_cast<double>(dataset.num_unknown_bytes())},
                     {"data/duplicates", static_cast<double>(dataset.num_duplicates())}};
  if (config.data.HasTeacherPrompt()) {
    metrics.emplace_back("data/teacher_prompt_missing", dataset.num_teacher_prompt_missing());
  }
  return metrics;
}

}  // namespace

absl::Status LoadData(TrainingParts* parts) {
  TAOPD_ASSIGN_OR_RETURN(
      const PromptModel model,
      BadData(Annotate(PromptModelOf(parts->config.data, parts->run.student()), "student.model")));
  TAOPD_ASSIGN_OR_RETURN(
      TrainingPrompts training,
      BadData(Annotate(LoadTrainingPrompts(parts->config.data, model), "data.train")));
  TAOPD_ASSIGN_OR_RETURN(
      PromptDataset evaluation,
      BadData(
          Annotate(LoadEvalPrompts(parts->config.data, parts->config.eval, model), "data.val")));
  absl::Status taught =
      CheckSourcesAreTaught(parts->config, training.dataset.records, "data.train");
  if (parts->config.eval.measure == EvalMeasure::kKl)
    taught.Update(CheckSourcesAreTaught(parts->config, evaluation.records, "data.val"));
  taught.Update(CheckSourcesOccur(parts->config, training.dataset.records));
  TAOPD_RETURN_IF_ERROR(BadUsage(taught));
  LogDataset("data.train", training.dataset);
  LogDataset("data.val", evaluation);
  if (!parts->config.data.train_weights.empty()) parts->data.shares = training.shares;
  parts->data.problems = std::move(evaluation.records);
  TAOPD_RETURN_IF_ERROR(BadUsage(CheckBestMetric(*parts)));
  parts->data.order.emplace(training.shares, DeriveSeed(parts->config.run.seed, "data"),
                            parts->config.data.shuffle);
  parts->data.metrics = DataMetrics(parts->config, training.dataset);
  parts->data.prompts = std::move(training.dataset.records);
  return BadData(
      Annotate(parts->data.order->Restore(parts->run.state().epoch, parts->run.state().epoch_index),
               "the checkpoint does not fit data.train"));
}

absl::StatusOr<RunFacts> FactsOfRun(TrainingParts* parts) {
  const StudentConfig& student = parts->config.student;
  const DataUse use = {.sources_choose_teachers = !parts->config.teachers.empty(),
                       .has_teacher_prompts = parts->config.data.HasTeacherPrompt(),
                       .shares = parts->data.shares};
  TAOPD_ASSIGN_OR_RETURN(
      RunFacts facts,
      FactsOfData(parts->data.prompts, use,
                  parts->data.IsEvaluated(parts->config.eval) ? parts->config.data.val
                                                              : std::vector<std::string>(),
                  parts->run.student(),
                  student.tokenizer.empty() ? student.model : student.tokenizer));
  for (RunFact& fact : FactsOfTeacher(parts->teacher.info)) facts.push_back(std::move(fact));
  return facts;
}

}  // namespace taopd
