#include "trainer/loop/run_guard.h"

#include <nlohmann/json.hpp>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "common/model/torch_errors.h"
#include "trainer/setup/ranks.h"
#include "trainer/step/kl_probe.h"

namespace taopd {

RunGuard::RunGuard(const RunContext& context, RunLifecycle* lifecycle, RunEvaluations* evaluations,
                   RunPipeline* pipeline)
    : context_(context), lifecycle_(*lifecycle), evaluations_(*evaluations), pipeline_(*pipeline) {
  lifecycle_.OnPrepare([this] {
    if (!run_control_.pause_requested()) guard_.EndPause();
    run_.checkpoints().SetFile("guard.json", guard_.State());
    if (!probe_.empty()) run_.checkpoints().SetFile("probe.json", WriteProbe(probe_));
    return pipeline_.KeepInFlight();
  });
}

absl::Status RunGuard::Restore() {
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(&group_, RestoreFiles()));
  // A run never goes back to a checkpoint within a step, which the state may come from.
  TAOPD_RETURN_IF_ERROR(lifecycle_.kept().Restore(run_.state().step, last_good_weights()));
  TAOPD_RETURN_IF_ERROR(pipeline_.Restart(skips_prompts_));
  return evaluations_.Restore();
}

absl::Status RunGuard::RestoreFiles() {
  TAOPD_ASSIGN_OR_RETURN(rollbacks_, BadData(ReadRollbacks(run_.run_dir(), run_.state().step)));
  const std::string dir = run_.checkpoint_dir();
  if (dir.empty()) return absl::OkStatus();
  TAOPD_RETURN_IF_ERROR(lifecycle_.Restore(config_, step_context_.shares));
  guard_ = CollapseGuard(config_.guard);
  if (const std::string path = dir + "/guard.json"; FileExists(path)) {
    TAOPD_ASSIGN_OR_RETURN(const std::string text, BadData(ReadFileToString(path)));
    TAOPD_RETURN_IF_ERROR(BadData(Annotate(guard_.Restore(text), path)));
  }
  if (const std::string path = dir + "/probe.json"; FileExists(path)) {
    TAOPD_ASSIGN_OR_RETURN(const std::string text, BadData(ReadFileToString(path)));
    TAOPD_ASSIGN_OR_RETURN(probe_, BadData(Annotate(ReadProbe(text), path)));
  }
  return SkipUndonePrompts();
}

// The steps that a roll-back has undone would raise the same alarm on the same prompts. A step that
// is half done needs its prompts, however.
absl::Status RunGuard::SkipUndonePrompts() {
  skips_prompts_ = rollbacks_.SkipsAt(run_.state().step) && lifecycle_.pending() == nullptr;
  if (!skips_prompts_) return absl::OkStatus();
  run_.state().epoch = rollbacks_.epoch;
  run_.state().epoch_index = rollbacks_.epoch_index;
  const absl::Status position = data_.order->Restore(run_.state().epoch, run_.state().epoch_index);
  return BadData(Annotate(position, "rollbacks.json"));
}

void RunGuard::RestorePause() {
  if (!guard_.pauses()) return;
  LogWarning("paused, as a guard had paused the run before it ended; POST /resume continues it",
             {{"step", run_.state().step}});
  run_control_.RequestPause(true);
}

void RunGuard::ClearRollbackIntent() {
  if (!FileExists(run_.run_dir() + "/rollbacks.json")) return;
  if (absl::Status settled = RecordRollback(rollbacks_, std::nullopt); !settled.ok())
    LogWarning("rollbacks.json could not be written", {{"error", settled}});
}

void RunGuard::AddMetrics(const StepResult& result, Metrics* metrics) {
  const GuardConfig& config = config_.guard;
  const int64_t step = run_.state().step;
  // All ranks get rank 0's metrics.
  if (config.kl_to_start.limit == 0 || !group_.is_root()) return;
  // A step whose responses are all given has no rollouts.
  if (probe_.empty() && !result.rollouts.empty()) {
    // The rollouts were generated before the step's first update. A resumed run may have switched
    // the metric on, or earlier steps may have had no rollouts.
    if (step > 1) {
      LogWarning("policy/kl_to_start is measured from here, not from the start of the run",
                 {{"step", step - 1}});
    }
    const auto size = std::min<size_t>(result.rollouts.size(), kNumProbes);
    probe_.assign(result.rollouts.begin(), result.rollouts.begin() + static_cast<int64_t>(size));
  }
  if (probe_.empty() || step % config.kl_every != 0) return;
  metrics->emplace_back("policy/kl_to_start",
                        MeasureKlToStart(run_.student().decoder.get(), step_context_.head, probe_,
                                         config_.trainer.MicroBatchTokens()));
}

void RunGuard::LogAlarm(const GuardAlarm& alarm) {
  const int64_t step = run_.state().step;
  LogWarning("guard", {{"guard", alarm.guard},
                       {"step", step},
                       {"metric", alarm.metric},
                       {"value", alarm.value},
                       {"limit", alarm.limit},
                       {"steps_in_a_row", alarm.num_in_a_row},
                       {"action", NameOf(alarm.action)}});
  WriteEvent({{"event", "guard"},
              {"step", step},
              {"guard", alarm.guard},
              {"metric", alarm.metric},
              {"value", alarm.value},
              {"limit", alarm.limit},
              {"steps_in_a_row", alarm.num_in_a_row},
              {"action", NameOf(alarm.action)}});
}

absl::StatusOr<bool> RunGuard::Observe(const Metrics& metrics) {
  const GuardConfig& config = config_.guard;
  GuardAlarm worst;
  const std::vector<GuardAlarm> alarms = guard_.Observe(run_.state().step, metrics);
  // The step's rollouts came from the weights of the step before.
  if (guard_.last_good_step() == run_.state().step) lifecycle_.kept().MarkNewestGood();
  for (const GuardAlarm& alarm : alarms) {
    // Log an alarm at its first step and when the guard begins to act; in between it would only be
    // repeated.
    if (alarm.num_in_a_row == 1 || alarm.num_in_a_row == config.patience) LogAlarm(alarm);
    if (alarm.action > worst.action) worst = alarm;
  }
  const auto describe = [&worst] {
    return Concat("guard.", worst.guard, ": ", worst.metric, " = ", worst.value,
                  " has been beyond ", worst.limit, " for ", worst.num_in_a_row, " steps in a row");
  };
  switch (worst.action) {
    case GuardAction::kNone:
    case GuardAction::kWarn:
      return false;
    case GuardAction::kPause:
      if (guard_.pauses()) run_control_.RequestPause(true);
      return false;
    case GuardAction::kStop:
      return lifecycle_.EndFailed(WithExitCode(kExitNumerics, Internal(describe())));
    case GuardAction::kRollBack:
      if (rollbacks_.count >= kMaxRollbacks) {
        return lifecycle_.EndFailed(WithExitCode(
            kExitNumerics,
            Internal(describe(), " after ", rollbacks_.count, " roll-backs, the limit")));
      }
      try {
        TAOPD_RETURN_IF_ERROR(RollBack(worst));
        return true;
      } catch (const std::exception& error) {
        if (!IsOutOfMemory(error)) throw;
        // The weights and the optimizer's state may belong to two steps.
        return lifecycle_.EndOutOfMemory(Concat("after step ", run_.state().step), error.what(),
                                         /*saves=*/false);
      }
  }
  return false;
}

absl::Status RunGuard::RollBack(const GuardAlarm& alarm) {
  const int64_t from = run_.state().step;
  lifecycle_.WaitUntilSaved();
  Rollbacks after = rollbacks_.Next(config_.guard.rollback_lr_factor, run_.state().epoch,
                                    run_.state().epoch_index);
  absl::Status given_up;
  bool has_begun = false;
  const auto path = run_.RollBack(last_good_weights(), [&](int64_t to_step) {
    has_begun = true;
    evaluations_.Abandon();
    pipeline_.Drop();
    after.to_step = to_step;
    given_up = lifecycle_.RetryUntilStored("rollbacks.json",
                                           [&] { return RecordRollback(rollbacks_, after); });
    return given_up;
  });
  TAOPD_RETURN_IF_ERROR(given_up);
  if (!path.ok()) {
    // A resumed run must not lower its learning rate for a roll-back that failed.
    const absl::Status undone =
        has_begun ? RecordRollback(rollbacks_, std::nullopt) : absl::OkStatus();
    if (!undone.ok())
      LogWarning("rollbacks.json still has the roll-back that failed", {{"error", undone}});
    const std::string what = Concat("guard.", alarm.guard, " asks to roll back",
                                    has_begun ? "" : ", and nothing is changed");
    const absl::Status failure = Annotate(path.status(), what);
    if (has_begun || !absl::IsNotFound(failure)) return BadData(failure);
    return lifecycle_.EndFailed(WithExitCode(kExitNumerics, failure));
  }
  if (context_.teacher.self)
    TAOPD_RETURN_IF_ERROR(WithExitCode(kExitUnavailable, context_.teacher.self->LoadAverage()));
  if (absl::Status done = RecordRollback(after, std::nullopt); !done.ok())
    LogWarning("rollbacks.json still marks the roll-back as begun; a resumed run treats it as done",
               {{"error", done}});
  TAOPD_RETURN_IF_ERROR(
      BadData(data_.order->Restore(run_.state().epoch, run_.state().epoch_index)));
  TAOPD_RETURN_IF_ERROR(Restore());
  lifecycle_.MarkSaved();
  LogRollback(alarm, from, *path);
  // The evaluation of this step may be the one that was abandoned.
  return evaluations_.RunIfMissing();
}

void RunGuard::LogRollback(const GuardAlarm& alarm, int64_t from_step, const std::string& path) {
  const int64_t to_step = run_.state().step;
  const int64_t skipped =
      skips_prompts_ ? (from_step - to_step) * config_.data.train_batch_size : 0;
  LogWarning("rolled back", {{"guard", alarm.guard},
                             {"from_step", from_step},
                             {"to_step", to_step},
                             {"skipped_prompts", skipped},
                             {"checkpoint", path},
                             {"lr_factor", rollbacks_.lr_factor},
                             {"rollbacks", rollbacks_.count}});
  WriteEvent({{"event", "rolled_back"},
              {"guard", alarm.guard},
              {"from_step", from_step},
              {"to_step", to_step},
              {"skipped_prompts", skipped},
              {"lr_factor", rollbacks_.lr_factor},
              {"rollbacks", rollbacks_.count}});
  run_control_.Update([&](RunStatus& status) {
    status.step = to_step;
    status.last_checkpoint = path;
    status.saved_step = to_step;
  });
}

absl::Status RunGuard::RecordRollback(const Rollbacks& rollbacks,
                                      const std::optional<Rollbacks>& intent) {
  return group_.AgreeOnStatus(group_.is_root() ? WriteRollbacks(rollbacks, run_.run_dir(), intent)
                                               : absl::OkStatus());
}

// Events are kept even if a roll-back cuts the metrics.
void RunGuard::WriteEvent(nlohmann::ordered_json event) {
  if (!group_.is_root()) return;
  event["time"] = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  auto writer = JsonlWriter::Open(run_.run_dir() + "/events.jsonl");
  const absl::Status written = writer.ok() ? writer->Write(event) : writer.status();
  if (!written.ok()) LogWarning("an event could not be written", {{"error", written}});
}

}  // namespace taopd
