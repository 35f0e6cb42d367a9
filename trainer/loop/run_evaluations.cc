#include "trainer/loop/run_evaluations.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/eval/measure_student.h"
#include "trainer/setup/ranks.h"

namespace taopd {

bool RunEvaluations::is_due() const {
  if (!data_.IsEvaluated(config_.eval)) return false;
  if (run_.state().step == 0) return config_.trainer.eval_at_start;
  return run_.is_last() || run_.is_due(config_.trainer.eval_every);
}

bool RunEvaluations::EndsEarly() const {
  const int64_t limit = config_.trainer.early_stop_evaluations;
  if (limit == 0) return false;
  if (!is_beside()) return best_.num_since_best() >= limit;
  if (!run_.is_due(config_.trainer.eval_every)) return false;
  BestEvaluation earlier(smallest_is_best_);
  for (const auto& [step, value] : values_) {
    if (step < run_.state().step) earlier.Observe(step, value);
  }
  return earlier.num_since_best() >= limit;
}

void RunEvaluations::Observe(const RecordedMetrics& records) {
  for (const auto& [step, value] : records.values) {
    best_.Observe(step, value);
    values_.emplace_back(step, value);
  }
}

std::optional<EvalJournal> RunEvaluations::OpenJournal(int64_t step, double train_seconds) {
  auto evaluation = DescribeQuestions(config_);
  if (evaluation.ok()) {
    (*evaluation)["step"] = step;
    // The time distinguishes a step that a roll-back has repeated.
    (*evaluation)["train_seconds"] = train_seconds;
    (*evaluation)["teacher"] = teacher_.info.Identity();
    (*evaluation)["teacher.top_k"] = config_.teacher.top_k;
    (*evaluation)["ranks"] = {group_.rank(), group_.world_size()};
  }
  const std::string path = Concat(JournalDir(), "/step-", step, "-rank-", group_.rank(), ".jsonl");
  auto journal = evaluation.ok() ? EvalJournal::Open(path, *evaluation, /*overwrite=*/false)
                                 : absl::StatusOr<EvalJournal>(evaluation.status());
  if (absl::IsFailedPrecondition(journal.status()))  // the file belongs to another evaluation
    journal = EvalJournal::Open(path, *evaluation, /*overwrite=*/true);
  if (!journal.ok()) {
    LogWarning("an evaluation that is interrupted will be repeated: it has no journal",
               {{"error", journal.status()}});
    return std::nullopt;
  }
  if (!journal->rows().empty()) {
    LogInfo("an evaluation continues", {{"step", step}, {"done", journal->rows().size()}});
  }
  return *std::move(journal);
}

absl::Status RunEvaluations::OnWait(int64_t num_added) {
  TAOPD_RETURN_IF_ERROR(group_.health());
  if (context_.run_control.stop_requested())
    return absl::CancelledError("asked to stop during an evaluation");
  // Every start makes progress by at least one response.
  if (num_added == 0 || !lifecycle_.wall_time().MustSaveNow(absl::Now())) return absl::OkStatus();
  context_.run_control.RequestStop(kExitStoppedByUser);
  return absl::CancelledError("trainer.max_wall_time_s has passed during an evaluation");
}

absl::StatusOr<EvalResult> RunEvaluations::Measure() {
  std::optional<EvalJournal> opened = OpenJournal(run_.state().step, run_.state().train_seconds);
  EvalJournal* const journal = opened ? &*opened : nullptr;
  const EvaluationPart part(config_, data_.problems, &group_);
  absl::StatusOr<EvalResult> result = EvalResult();
  if (part.has_work) {
    const EvaluatedModel model = {.decoder = run_.student().decoder.get(),
                                  .engine = &*rollouts_.local,
                                  .tokenizer = run_.student().tokenizer.get(),
                                  .teacher = teacher_.client.get()};
    AccuracyPart shared;
    if (part.exchanges) {
      shared = {group_.rank(), group_.world_size(),
                [this](const auto& mine) { return GatherOutcomes(&group_, mine); }};
    }
    result = MeasureStudent(
        config_, *part.records, model,
        [&] { return OnWait(journal == nullptr ? 0 : journal->num_added()); }, shared, journal);
  }
  return CombineParts(part, &group_, std::move(result));
}

absl::Status RunEvaluations::Run() {
  if (!is_beside()) return RunBlocking();
  if (!beside_ || beside_->step() != run_.state().step) {
    TAOPD_RETURN_IF_ERROR(Finish());
    if (EndsEarly()) LogEarlyStop();
    Begin();
  }
  return run_.state().step == 0 || run_.is_last() ? Finish() : absl::OkStatus();
}

absl::Status RunEvaluations::RunIfMissing() {
  if (!is_due() || run_.recorded().has_evaluation) return absl::OkStatus();
  if (lifecycle_.pending() == nullptr) return Run();
  if (group_.is_root()) {
    LogWarning("an evaluation is left out: the checkpoint lies within the next step",
               {{"step", run_.state().step}});
  }
  return absl::OkStatus();
}

absl::Status RunEvaluations::RunBlocking() {
  const absl::Time start = absl::Now();
  const int64_t step = run_.state().step;
  context_.run_control.SetPhase(TrainerPhase::kEvaluating);
  absl::StatusOr<EvalResult> result = Measure();
  wait_time_ += absl::Now() - start;
  context_.trace.Add("evaluation", start);
  if (!group_.health().ok()) return WithExitCode(kExitUnavailable, group_.health());
  return result.ok() ? Record(step, *result) : Failed(step, result.status());
}

void RunEvaluations::Begin() {
  TrainState& state = run_.state();
  // If the run is killed, the resumed run evaluates the weights of this checkpoint.
  if (state.step > 0 && !lifecycle_.is_saved_or_saving()) lifecycle_.StartSave();
  state.open_evaluation = state.step;
  lifecycle_.kept().SetEvaluated(state.step);
  rollouts_.evaluation_snapshot->Take(state.step);
  beside_.emplace(context_, state.step, OpenJournal(state.step, state.train_seconds));
}

absl::Status RunEvaluations::ResumeInterrupted() {
  TrainState& state = run_.state();
  const int64_t step = std::exchange(state.open_evaluation, -1);
  lifecycle_.kept().SetEvaluated(std::nullopt);
  if (step < 0 || run_.recorded().evaluated.contains(step)) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(const std::string dir, run_.checkpoints().Find(step));
  if (dir.empty() || rollouts_.evaluation_snapshot == nullptr) {
    LogWarning("an evaluation that was interrupted is left out",
               {{"step", step},
                {"reason", dir.empty() ? "the checkpoint of its weights does not exist"
                                       : "there are no evaluations beside training any more"}});
    return absl::OkStatus();
  }
  absl::Status loaded = rollouts_.evaluation_snapshot->Load(step, dir + "/model");
  const absl::StatusOr<TrainState> then = ReadTrainState(dir);
  if (loaded.ok()) loaded = then.status();
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(&group_, loaded.ok() ? loaded : BadData(loaded)));
  state.open_evaluation = step;
  lifecycle_.kept().SetEvaluated(step);
  beside_.emplace(context_, step, OpenJournal(step, then->train_seconds));
  return absl::OkStatus();
}

absl::Status RunEvaluations::RecordIfReady() {
  if (!beside_) return absl::OkStatus();
  TAOPD_ASSIGN_OR_RETURN(
      const int64_t unready,
      WithExitCode(kExitUnavailable, group_.AgreeOnLargest(beside_->IsReady() ? 0 : 1)));
  return unready > 0 ? absl::OkStatus() : RecordReady();
}

absl::Status RunEvaluations::Finish() {
  if (!beside_) return absl::OkStatus();
  const absl::Time start = absl::Now();
  context_.run_control.SetPhase(TrainerPhase::kEvaluating);
  while (!beside_->IsReady(absl::Seconds(1))) {
    if (const absl::Status status = OnWait(beside_->num_added()); !status.ok())
      beside_->Cancel(status);
  }
  wait_time_ += absl::Now() - start;
  context_.trace.Add("evaluation", start);
  return RecordReady();
}

absl::Status RunEvaluations::RecordReady() {
  const int64_t step = beside_->step();
  const absl::StatusOr<EvalResult> result = beside_->Take();
  beside_.reset();
  if (!group_.health().ok()) return WithExitCode(kExitUnavailable, group_.health());
  if (!result.ok()) return Failed(step, result.status());
  TAOPD_RETURN_IF_ERROR(Record(step, *result));
  run_.state().open_evaluation = -1;
  lifecycle_.kept().SetEvaluated(std::nullopt);
  return absl::OkStatus();
}

absl::Status RunEvaluations::Record(int64_t step, const EvalResult& result) {
  const bool is_after = step >= config_.trainer.total_steps;
  const std::string when = step == 0 ? "before" : is_after ? "after" : "eval";
  // The line of metrics comes last: it says that the evaluation is complete (recorded_metrics.h).
  run_.output().WriteSamples(step, when, result.samples);
  TAOPD_ASSIGN_OR_RETURN(const Metrics metrics,
                         WithExitCode(kExitUnavailable, MetricsOfRoot(&group_, result.metrics)));
  run_.output().Write(step, metrics);
  // A leftover does no harm, because it matches no later evaluation.
  if (group_.is_root()) RemoveAll(JournalDir()).IgnoreError();
  ObserveMetrics(step, metrics);
  return absl::OkStatus();
}

absl::Status RunEvaluations::Failed(int64_t step, const absl::Status& status) {
  // The step is done, and a resumed run repeats only the evaluation.
  const bool is_out_of_memory = absl::IsResourceExhausted(status);
  if (run_.state().step > 0 || is_out_of_memory)
    TAOPD_RETURN_IF_ERROR(lifecycle_.SaveUntilStored());
  if (is_out_of_memory) {
    return lifecycle_.EndOutOfMemory(Concat("the evaluation after step ", step),
                                     std::string(status.message()), /*saves=*/true);
  }
  if (absl::IsCancelled(status)) {
    LogInfo("stopping", {{"reason", std::string(status.message())}});
    return lifecycle_.EndStopped();
  }
  const ExitCode code = IsServerAway(status)       ? kExitUnavailable
                        : absl::IsAborted(status)  ? kExitStorage  // of PublishedWeights
                        : absl::IsInternal(status) ? kExitInternal
                                                   : kExitData;
  return WithExitCode(code, Annotate(status, "evaluation"));
}

void RunEvaluations::ObserveMetrics(int64_t step, const Metrics& metrics) {
  const std::string& name = config_.trainer.best_metric;
  if (name.empty()) return;
  const double* value = FindMetric(metrics, name);
  if (value == nullptr) {
    LogWarning("trainer.best_metric is not among the metrics of the evaluation",
               {{"best_metric", name}});
    return;
  }
  values_.emplace_back(step, *value);
  if (best_.Observe(step, *value)) {
    LogInfo("best so far", {{"step", step}, {name, *value}});
    lifecycle_.kept().SetBest(step);
    if (step == 0) return;  // the start has no checkpoint
    // best.json names checkpoints that exist.
    if (step == run_.state().step) {
      if (!lifecycle_.WaitUntilSaved() && !lifecycle_.Save().ok()) return;
    } else if (run_.checkpoints().Find(step).value_or("").empty()) {
      LogWarning("best.json does not name the best evaluation: its checkpoint does not exist",
                 {{"step", step}});
      return;
    }
    WriteBest(step, *value);
    return;
  }
  if (!is_beside() && EndsEarly() && !run_.is_last()) LogEarlyStop();
}

void RunEvaluations::LogEarlyStop() const {
  LogInfo("finishing early: trainer.best_metric has not improved",
          {{"step", run_.state().step},
           {"evaluations", best_.num_since_best()},
           {"best_step", best_.step().value_or(-1)},
           {config_.trainer.best_metric, best_.value()}});
}

void RunEvaluations::WriteBest(int64_t step, double value) {
  const std::string path = run_.run_dir() + "/best.json";
  lifecycle_.kept().SetNamedBest(step);
  if (!group_.is_root()) return;
  const nlohmann::ordered_json json = {
      {"step", step}, {"metric", config_.trainer.best_metric}, {"value", value}};
  const absl::Status written = WriteFileAtomically(path, json.dump() + "\n");
  if (!written.ok()) LogWarning("best.json could not be written", {{"error", written}});
}

absl::Status RunEvaluations::Restore() {
  best_ = BestEvaluation(smallest_is_best_);
  values_.clear();
  BestEvaluation named(smallest_is_best_);
  Observe(run_.recorded());
  // Rank 0 alone sees the directory's changes in time; the steps go to all.
  for (const auto& [step, value] : run_.recorded().values) {
    TAOPD_ASSIGN_OR_RETURN(const std::string path, run_.checkpoints().Find(step));
    if (step == 0 || !path.empty()) named.Observe(step, value);
  }
  TAOPD_RETURN_IF_ERROR(ResumeInterrupted());
  lifecycle_.kept().SetBest(best_.step());
  lifecycle_.kept().SetNamedBest(std::nullopt);
  if (config_.trainer.best_metric.empty() || run_.checkpoint_dir().empty()) return absl::OkStatus();
  if (named.step() > 0) {  // best.json never names the start, as in ObserveMetrics
    WriteBest(*named.step(), named.value());
    return absl::OkStatus();
  }
  std::error_code error;
  if (group_.is_root()) std::filesystem::remove(run_.run_dir() + "/best.json", error);
  if (error) {
    LogWarning("best.json could not be removed, and names a checkpoint that does not exist",
               {{"error", error.message()}});
  }
  return absl::OkStatus();
}

}  // namespace taopd
