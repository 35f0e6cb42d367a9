// Evaluations of a distillation run: the best checkpoint and the early stop follow from them.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/commands/eval/evaluation_identity.h"
#include "trainer/commands/measure_student.h"
#include "trainer/commands/train/training_run.h"
#include "trainer/dist/rank_sums.h"

namespace taopd {
namespace {

const double* Find(const Metrics& metrics, const std::string& name) {
  for (const auto& [key, value] : metrics) {
    if (key == name) return &value;
  }
  return nullptr;
}

// Combines the metrics of each rank on its records into those on all records.
absl::Status JoinKl(const std::vector<PromptRecord>& records, ProcessGroup* group,
                    Metrics* metrics) {
  int64_t num_tokens = 0;
  for (const PromptRecord& record : records) {
    num_tokens += static_cast<int64_t>(record.response_ids.size());
  }
  double* kl = nullptr;
  RankSums sums;
  sums.Add(&num_tokens);
  for (auto& [name, value] : *metrics) {
    if (name == "eval/kl_to_teacher") {
      kl = &value;
      value *= static_cast<double>(num_tokens);
    }
    sums.Add(&value);
  }
  TAOPD_RETURN_IF_ERROR(sums.Reduce(group));
  if (kl != nullptr) *kl /= static_cast<double>(num_tokens);
  return absl::OkStatus();
}

// Gathers the outcomes of all ranks on all ranks.
absl::StatusOr<std::vector<std::string>> GatherFound(ProcessGroup* group,
                                                     const absl::StatusOr<std::string>& mine) {
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(mine.status()));
  std::vector<std::string> all;
  for (int64_t rank = 0; rank < group->world_size(); ++rank) {
    TAOPD_ASSIGN_OR_RETURN(all.emplace_back(), group->BroadcastText(*mine, rank));
  }
  return all;
}

}  // namespace

bool TrainingRun::evaluation_is_due() const {
  if (!evaluates()) return false;
  if (state_.step == 0) return config_.trainer.eval_at_start;
  return run_.is_last() || run_.is_due(config_.trainer.eval_every);
}

bool TrainingRun::is_finished() const {
  if (run_.is_last()) return true;
  const int64_t limit = config_.trainer.early_stop_evaluations;
  return limit > 0 && best_.num_since_best() >= limit;
}

std::string TrainingRun::JournalDir() const { return run_.run_dir() + "/evaluation_journal"; }

std::optional<EvalJournal> TrainingRun::OpenJournal() {
  auto evaluation = DescribeQuestions(config_);
  if (evaluation.ok()) {
    (*evaluation)["step"] = state_.step;
    // The time distinguishes a step that a roll-back has repeated.
    (*evaluation)["train_seconds"] = state_.train_seconds;
    (*evaluation)["teacher"] = teacher_info_.Identity();
    (*evaluation)["teacher.top_k"] = config_.teacher.top_k;
    (*evaluation)["ranks"] = {group_->rank(), group_->world_size()};
  }
  const std::string path =
      Concat(JournalDir(), "/step-", state_.step, "-rank-", group_->rank(), ".jsonl");
  auto journal = evaluation.ok() ? EvalJournal::Open(path, *evaluation, /*overwrite=*/false)
                                 : absl::StatusOr<EvalJournal>(evaluation.status());
  if (absl::IsFailedPrecondition(journal.status()))  // of another evaluation
    journal = EvalJournal::Open(path, *evaluation, /*overwrite=*/true);
  if (!journal.ok()) {
    LogWarning("an evaluation that is interrupted will be repeated: it has no journal",
               {{"error", journal.status()}});
    return std::nullopt;
  }
  if (!journal->rows().empty()) {
    LogInfo("an evaluation goes on", {{"step", state_.step}, {"done", journal->rows().size()}});
  }
  return *std::move(journal);
}

absl::StatusOr<EvalResult> TrainingRun::Measure() {
  std::optional<EvalJournal> opened = OpenJournal();
  EvalJournal* const journal = opened ? &*opened : nullptr;
  const auto on_wait = [this, journal]() -> absl::Status {
    TAOPD_RETURN_IF_ERROR(group_->health());
    if (run_state_->stop_requested())
      return absl::CancelledError("asked to stop during an evaluation");
    // Every start makes progress by at least one response.
    if (journal == nullptr || journal->num_added() == 0 || !wall_time_.IsUpForAPart(absl::Now()))
      return absl::OkStatus();
    run_state_->RequestStop(kExitStoppedByUser);
    return absl::CancelledError("trainer.max_wall_time_s has passed during an evaluation");
  };
  if (config_.eval.measure == EvalMeasure::kAccuracy && group_->world_size() > 1) {
    const EvalPart part = {group_->rank(), group_->world_size(),
                           [this](const auto& mine) { return GatherFound(group_, mine); }};
    auto result = MeasureStudent(config_, problems_, &student_, &*rollout_engine_, teacher_.get(),
                                 on_wait, part, journal);
    TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(result.status()));
    return result;
  }
  // Sums over parts would round differently from the sum over all.
  const auto size = static_cast<int64_t>(problems_.size());
  const bool is_divided = config_.eval.measure == EvalMeasure::kKl && group_->world_size() > 1 &&
                          size >= group_->world_size() && !config_.dist.deterministic;
  absl::StatusOr<EvalResult> result = EvalResult();
  std::vector<PromptRecord> mine;
  if (is_divided) {
    mine.assign(problems_.begin() + size * group_->rank() / group_->world_size(),
                problems_.begin() + size * (group_->rank() + 1) / group_->world_size());
  }
  if (is_divided || is_root()) {
    result = MeasureStudent(config_, is_divided ? mine : problems_, &student_, &*rollout_engine_,
                            teacher_.get(), on_wait, EvalPart(), journal);
  }
  // Ranks without work wait here.
  TAOPD_RETURN_IF_ERROR(group_->AgreeOnStatus(result.status()));
  if (is_divided) TAOPD_RETURN_IF_ERROR(JoinKl(mine, group_, &result->metrics));
  return result;
}

absl::Status TrainingRun::Evaluate() {
  const absl::Time start = absl::Now();
  const std::string when = state_.step == 0 ? "before" : run_.is_last() ? "after" : "eval";
  run_state_->Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
  absl::StatusOr<EvalResult> result = Measure();
  evaluation_time_ += absl::Now() - start;
  if (context_.timeline != nullptr) {
    timeline_.Add(TimelineTrack::kTrainer, "evaluation", start, absl::Now());
  }
  if (!group_->health().ok()) return WithExitCode(kExitUnavailable, group_->health());
  if (!result.ok()) {
    // The step is done, and a resumed run repeats only the evaluation.
    if (state_.step > 0 && !IsSaved()) {
      TAOPD_RETURN_IF_ERROR(SaveOrWait());
    }
    if (absl::IsResourceExhausted(result.status())) {
      return OutOfMemory(state_, student_.optimizer->num_updates(),
                         Concat("the evaluation after step ", state_.step),
                         std::string(result.status().message()));
    }
    if (absl::IsCancelled(result.status())) {
      LogInfo("stopping", {{"reason", std::string(result.status().message())}});
      return Stopped();
    }
    return WithExitCode(absl::IsUnavailable(result.status()) ? kExitUnavailable : kExitData,
                        Annotate(result.status(), "evaluation"));
  }
  // The line of metrics comes last: it says that the evaluation is complete (recorded_metrics.h).
  run_.output().WriteSamples(state_.step, when, result->samples);
  const auto metrics = MetricsOfRoot(group_, result->metrics);
  if (!metrics.ok()) return WithExitCode(kExitUnavailable, metrics.status());
  run_.output().Write(state_.step, *metrics);
  std::error_code error;  // leftovers do not match any later evaluation
  if (is_root()) std::filesystem::remove_all(JournalDir(), error);
  ObserveEvaluation(*metrics);
  return absl::OkStatus();
}

void TrainingRun::ObserveEvaluation(const Metrics& metrics) {
  const std::string& name = config_.trainer.best_metric;
  if (name.empty()) return;
  const double* value = Find(metrics, name);
  if (value == nullptr) {
    LogWarning("trainer.best_metric is not among the metrics of the evaluation",
               {{"best_metric", name}});
    return;
  }
  if (best_.Observe(state_.step, *value)) {
    LogInfo("best so far", {{"step", state_.step}, {name, *value}});
    if (state_.step == 0) return;            // there is no checkpoint of no step
    if (!IsSaved() && !Save().ok()) return;  // best.json names checkpoints that exist
    NameBest(state_.step, *value);
    return;
  }
  if (!is_finished() || run_.is_last()) return;
  LogInfo("finishing early: trainer.best_metric has not improved",
          {{"step", state_.step},
           {"evaluations", best_.num_since_best()},
           {"best_step", best_.step()},
           {name, best_.value()}});
}

void TrainingRun::NameBest(int64_t step, double value) {
  const std::string path = run_.run_dir() + "/best.json";
  named_best_step_ = step;
  PinCheckpoints();
  if (!is_root()) return;
  const nlohmann::ordered_json json = {
      {"step", step}, {"metric", config_.trainer.best_metric}, {"value", value}};
  const absl::Status written = WriteFileAtomically(path, json.dump() + "\n");
  if (!written.ok()) LogWarning("best.json is not written", {{"error", written}});
}

absl::Status TrainingRun::RestoreBest() {
  best_ = BestEvaluation(config_.trainer.best_is == BestIs::kSmallest);
  named_best_step_ = -1;
  BestEvaluation named(config_.trainer.best_is == BestIs::kSmallest);
  // Rank 0 alone sees the directory's changes in time; the steps go to all.
  for (const auto& [step, value] : run_.recorded().values) {
    best_.Observe(step, value);
    TAOPD_ASSIGN_OR_RETURN(const bool is_there, run_.HasCheckpoint(step));
    if (is_there) named.Observe(step, value);
  }
  if (config_.trainer.best_metric.empty() || run_.checkpoint_dir().empty()) return absl::OkStatus();
  if (named.step() >= 0) {
    NameBest(named.step(), named.value());
    return absl::OkStatus();
  }
  std::error_code error;
  if (is_root()) std::filesystem::remove(run_.run_dir() + "/best.json", error);
  return error ? Internal("cannot remove ", run_.run_dir(), "/best.json: ", error.message())
               : absl::OkStatus();
}

}  // namespace taopd
