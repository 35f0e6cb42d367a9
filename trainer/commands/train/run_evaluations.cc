#include "trainer/commands/train/run_evaluations.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/io/file.h"
#include "trainer/commands/eval/evaluation_identity.h"
#include "trainer/commands/measure_student.h"
#include "trainer/commands/train/setup/ranks.h"
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

RunEvaluations::RunEvaluations(TrainingParts* parts, RunSaves* saves)
    : parts_(*parts),
      saves_(*saves),
      run_(parts->run),
      smallest_is_best_(parts->config.trainer.best_is == BestIs::kSmallest),
      best_(smallest_is_best_) {}

bool RunEvaluations::is_due() const {
  if (!parts_.evaluates()) return false;
  if (parts_.state.step == 0) return parts_.config.trainer.eval_at_start;
  return run_.is_last() || run_.is_due(parts_.config.trainer.eval_every);
}

bool RunEvaluations::ends_run() const {
  if (run_.is_last()) return true;
  const int64_t limit = parts_.config.trainer.early_stop_evaluations;
  return limit > 0 && best_.num_since_best() >= limit;
}

void RunEvaluations::Observe(const RecordedMetrics& records) {
  for (const auto& [step, value] : records.values) best_.Observe(step, value);
}

std::optional<EvalJournal> RunEvaluations::OpenJournal() {
  const TrainState& state = parts_.state;
  const ProcessGroup& group = *parts_.group;
  auto evaluation = DescribeQuestions(parts_.config);
  if (evaluation.ok()) {
    (*evaluation)["step"] = state.step;
    // The time distinguishes a step that a roll-back has repeated.
    (*evaluation)["train_seconds"] = state.train_seconds;
    (*evaluation)["teacher"] = parts_.teacher_info.Identity();
    (*evaluation)["teacher.top_k"] = parts_.config.teacher.top_k;
    (*evaluation)["ranks"] = {group.rank(), group.world_size()};
  }
  const std::string path =
      Concat(JournalDir(), "/step-", state.step, "-rank-", group.rank(), ".jsonl");
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
    LogInfo("an evaluation goes on", {{"step", state.step}, {"done", journal->rows().size()}});
  }
  return *std::move(journal);
}

absl::Status RunEvaluations::OnWait(const EvalJournal* journal) {
  TAOPD_RETURN_IF_ERROR(parts_.group->health());
  if (parts_.run_state->stop_requested())
    return absl::CancelledError("asked to stop during an evaluation");
  // Every start makes progress by at least one response.
  if (journal == nullptr || journal->num_added() == 0 ||
      !parts_.wall_time.IsUpForAPart(absl::Now()))
    return absl::OkStatus();
  parts_.run_state->RequestStop(kExitStoppedByUser);
  return absl::CancelledError("trainer.max_wall_time_s has passed during an evaluation");
}

absl::StatusOr<EvalResult> RunEvaluations::MeasurePart(const std::vector<PromptRecord>& problems,
                                                       const EvalPart& part, EvalJournal* journal) {
  return MeasureStudent(
      parts_.config, problems, &parts_.student, &*parts_.rollout_engine, parts_.teacher.get(),
      [this, journal] { return OnWait(journal); }, part, journal);
}

absl::StatusOr<EvalResult> RunEvaluations::Measure() {
  const std::vector<PromptRecord>& problems = parts_.problems;
  const EvalMeasure measure = parts_.config.eval.measure;
  ProcessGroup* const group = parts_.group;
  std::optional<EvalJournal> opened = OpenJournal();
  EvalJournal* const journal = opened ? &*opened : nullptr;
  if (measure == EvalMeasure::kAccuracy && group->world_size() > 1) {
    const EvalPart part = {group->rank(), group->world_size(),
                           [group](const auto& mine) { return GatherFound(group, mine); }};
    auto result = MeasurePart(problems, part, journal);
    TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(result.status()));
    return result;
  }
  // Sums over parts would round differently from the sum over all.
  const auto size = static_cast<int64_t>(problems.size());
  const bool is_divided = measure == EvalMeasure::kKl && group->world_size() > 1 &&
                          size >= group->world_size() && !parts_.config.dist.deterministic;
  absl::StatusOr<EvalResult> result = EvalResult();
  std::vector<PromptRecord> mine;
  if (is_divided) {
    mine.assign(problems.begin() + size * group->rank() / group->world_size(),
                problems.begin() + size * (group->rank() + 1) / group->world_size());
  }
  if (is_divided || parts_.is_root()) {
    result = MeasurePart(is_divided ? mine : problems, EvalPart(), journal);
  }
  // Ranks without work wait here.
  TAOPD_RETURN_IF_ERROR(group->AgreeOnStatus(result.status()));
  if (is_divided) TAOPD_RETURN_IF_ERROR(JoinKl(mine, group, &result->metrics));
  return result;
}

absl::Status RunEvaluations::Run() {
  const absl::Time start = absl::Now();
  const std::string when = parts_.state.step == 0 ? "before" : run_.is_last() ? "after" : "eval";
  parts_.run_state->Update([](RunStatus& status) { status.phase = TrainerPhase::kEvaluating; });
  absl::StatusOr<EvalResult> result = Measure();
  time_ += absl::Now() - start;
  parts_.Trace("evaluation", start);
  if (!parts_.group->health().ok()) return WithExitCode(kExitUnavailable, parts_.group->health());
  if (!result.ok()) return Failed(result.status());
  // The line of metrics comes last: it says that the evaluation is complete (recorded_metrics.h).
  run_.output().WriteSamples(parts_.state.step, when, result->samples);
  const auto metrics = MetricsOfRoot(parts_.group, result->metrics);
  if (!metrics.ok()) return WithExitCode(kExitUnavailable, metrics.status());
  run_.output().Write(parts_.state.step, *metrics);
  std::error_code error;  // leftovers do not match any later evaluation
  if (parts_.is_root()) std::filesystem::remove_all(JournalDir(), error);
  ObserveMetrics(*metrics);
  return absl::OkStatus();
}

absl::Status RunEvaluations::Failed(const absl::Status& status) {
  // The step is done, and a resumed run repeats only the evaluation.
  if (parts_.state.step > 0 && !saves_.IsSaved()) {
    TAOPD_RETURN_IF_ERROR(saves_.SaveOrWait());
  }
  if (absl::IsResourceExhausted(status)) {
    return saves_.OutOfMemory(parts_.state, parts_.student.optimizer->num_updates(),
                              Concat("the evaluation after step ", parts_.state.step),
                              std::string(status.message()));
  }
  if (absl::IsCancelled(status)) {
    LogInfo("stopping", {{"reason", std::string(status.message())}});
    return saves_.Stopped();
  }
  return WithExitCode(absl::IsUnavailable(status) ? kExitUnavailable : kExitData,
                      Annotate(status, "evaluation"));
}

void RunEvaluations::ObserveMetrics(const Metrics& metrics) {
  const std::string& name = parts_.config.trainer.best_metric;
  if (name.empty()) return;
  const double* value = Find(metrics, name);
  if (value == nullptr) {
    LogWarning("trainer.best_metric is not among the metrics of the evaluation",
               {{"best_metric", name}});
    return;
  }
  const int64_t step = parts_.state.step;
  if (best_.Observe(step, *value)) {
    LogInfo("best so far", {{"step", step}, {name, *value}});
    saves_.Pin(best_.step(), named_best_step_);
    if (step == 0) return;  // there is no checkpoint of no step
    // best.json names checkpoints that exist.
    if (!saves_.IsSaved() && !saves_.Save().ok()) return;
    NameBest(step, *value);
    return;
  }
  if (!ends_run() || run_.is_last()) return;
  LogInfo("finishing early: trainer.best_metric has not improved",
          {{"step", step},
           {"evaluations", best_.num_since_best()},
           {"best_step", best_.step()},
           {name, best_.value()}});
}

void RunEvaluations::NameBest(int64_t step, double value) {
  const std::string path = run_.run_dir() + "/best.json";
  named_best_step_ = step;
  saves_.Pin(best_.step(), named_best_step_);
  if (!parts_.is_root()) return;
  const nlohmann::ordered_json json = {
      {"step", step}, {"metric", parts_.config.trainer.best_metric}, {"value", value}};
  const absl::Status written = WriteFileAtomically(path, json.dump() + "\n");
  if (!written.ok()) LogWarning("best.json is not written", {{"error", written}});
}

absl::Status RunEvaluations::Restore() {
  best_ = BestEvaluation(smallest_is_best_);
  named_best_step_ = -1;
  BestEvaluation named(smallest_is_best_);
  Observe(run_.recorded());
  // Rank 0 alone sees the directory's changes in time; the steps go to all.
  for (const auto& [step, value] : run_.recorded().values) {
    TAOPD_ASSIGN_OR_RETURN(const bool is_there, run_.HasCheckpoint(step));
    if (is_there) named.Observe(step, value);
  }
  saves_.Pin(best_.step(), named_best_step_);
  if (parts_.config.trainer.best_metric.empty() || run_.checkpoint_dir().empty())
    return absl::OkStatus();
  if (named.step() >= 0) {
    NameBest(named.step(), named.value());
    return absl::OkStatus();
  }
  std::error_code error;
  if (parts_.is_root()) std::filesystem::remove(run_.run_dir() + "/best.json", error);
  return error ? Internal("cannot remove ", run_.run_dir(), "/best.json: ", error.message())
               : absl::OkStatus();
}

}  // namespace taopd
