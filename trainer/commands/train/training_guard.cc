// The reaction of a distillation run to suspicious metrics, and the files that it writes for
// inspection.
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "trainer/commands/train/training_run.h"
#include "trainer/commands/until_stored.h"
#include "trainer/step/kl_probe.h"

namespace taopd {

void TrainingRun::MeasureForGuard(const StepResult& result, Metrics* metrics) {
  // Rank 0's metrics go to all.
  if (config_.guard.kl_to_start.limit == 0 || !is_root()) return;
  if (probe_.empty()) {
    // They were generated before the step's first update. A resumed run may have switched the
    // metric on, or a skipped step may have had none.
    if (state_.step > 1) {
      LogWarning("policy/kl_to_start is measured from here, not from the start of the run",
                 {{"step", state_.step - 1}});
    }
    const auto size = std::min<size_t>(result.rollouts.size(), config_.guard.kl_probe_rollouts);
    probe_.assign(result.rollouts.begin(), result.rollouts.begin() + static_cast<int64_t>(size));
  }
  if (probe_.empty() || state_.step % config_.guard.kl_every != 0) return;
  metrics->emplace_back("policy/kl_to_start",
                        MeasureKlToStart(student_.decoder.get(), context_.head, probe_,
                                         config_.trainer.MicroBatchTokens()));
}

absl::Status TrainingRun::ObserveGuard(const Metrics& metrics) {
  GuardAlarm worst;
  const std::vector<GuardAlarm> alarms = guard_.Observe(state_.step, metrics);
  // The step's rollouts came from the weights of the step before.
  if (guard_.last_good_step() == state_.step && newest_checkpoint_ >= 0) {
    last_good_checkpoint_ = newest_checkpoint_;
  }
  for (const GuardAlarm& alarm : alarms) {
    // Log an alarm at its first step and when the guard begins to act; in between it would only be
    // repeated.
    if (alarm.num_in_a_row == 1 || alarm.num_in_a_row == config_.guard.patience) {
      LogWarning("guard", {{"guard", alarm.guard},
                           {"step", state_.step},
                           {"metric", alarm.metric},
                           {"value", alarm.value},
                           {"limit", alarm.limit},
                           {"steps_in_a_row", alarm.num_in_a_row},
                           {"action", WordOf(alarm.action)}});
      WriteEvent({{"event", "guard"},
                  {"step", state_.step},
                  {"guard", alarm.guard},
                  {"metric", alarm.metric},
                  {"value", alarm.value},
                  {"limit", alarm.limit},
                  {"steps_in_a_row", alarm.num_in_a_row},
                  {"action", WordOf(alarm.action)}});
    }
    if (alarm.action > worst.action) worst = alarm;
  }
  const std::string what =
      Concat("guard.", worst.guard, ": ", worst.metric, " = ", worst.value, " is beyond ",
             worst.limit, " for ", worst.num_in_a_row, " steps in a row");
  switch (worst.action) {
    case GuardAction::kNone:
    case GuardAction::kWarn:
      return absl::OkStatus();
    case GuardAction::kPause:
      // Pause only once, because the user who resumes the run has seen the alarm.
      if (worst.num_in_a_row == config_.guard.patience) run_state_->RequestPause(true);
      return absl::OkStatus();
    case GuardAction::kStop:
      return FailSaved(WithExitCode(kExitNumerics, Internal(what)));
    case GuardAction::kRollBack:
      if (rollbacks_.count >= config_.guard.max_rollbacks) {
        return FailSaved(WithExitCode(
            kExitNumerics, Internal(what, " after ", rollbacks_.count, " roll-backs, the limit")));
      }
      return RollBack(worst);
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::RollBack(const GuardAlarm& alarm) {
  // The metrics of a step are those of the weights before its update.
  const int64_t from = state_.step, good = guard_.last_good_step() - 1;
  TakeSavedBeside(/*waits=*/true);
  Rollbacks after =
      rollbacks_.Next(config_.guard.rollback_lr_factor, state_.epoch, state_.epoch_index);
  absl::Status given_up;
  bool has_begun = false;
  const auto path = run_.RollBack(good, [&](int64_t to_step) {
    has_begun = true;
    after.to_step = to_step;
    given_up = UntilStored("rollbacks.json", &run_, run_state_,
                           [&] { return RecordRollback(rollbacks_, RollbackIntent{after}); });
    return given_up;
  });
  TAOPD_RETURN_IF_ERROR(given_up);
  if (!path.ok()) {
    // The run continues from where it can, at its full rate.
    const absl::Status undone =
        has_begun ? RecordRollback(rollbacks_, std::nullopt) : absl::OkStatus();
    if (!undone.ok())
      LogWarning("rollbacks.json still has the roll-back that failed", {{"error", undone}});
    const std::string what = Concat("guard.", alarm.guard, " asks to roll back",
                                    has_begun ? "" : ", and nothing is changed");
    return WithExitCode(absl::IsNotFound(path.status()) ? kExitNumerics : kExitData,
                        Annotate(path.status(), what));
  }
  output_.store(&run_.output());
  if (self_teacher_) {
    const absl::Status taken = self_teacher_->TakeAverage();
    if (!taken.ok()) return WithExitCode(kExitUnavailable, taken);
  }
  if (absl::Status done = RecordRollback(after, std::nullopt); !done.ok())
    LogWarning("rollbacks.json has the roll-back as begun, which counts", {{"error", done}});
  const absl::Status position = order_->Restore(state_.epoch, state_.epoch_index);
  if (!position.ok()) return BadData(position);
  TAOPD_RETURN_IF_ERROR(AgreeOnFailure(group_, RestoreWatch()));
  if (const absl::Status best = RestoreBest(); !best.ok()) return WithExitCode(kExitInternal, best);
  PinCheckpoints();
  const int64_t skipped =
      pending_ == nullptr ? (from - state_.step) * config_.data.train_batch_size : 0;
  has_saved_ = true;
  LogWarning("rolled back", {{"guard", alarm.guard},
                             {"from_step", from},
                             {"to_step", state_.step},
                             {"checkpoint", *path},
                             {"skipped_prompts", skipped},
                             {"lr_factor", rollbacks_.lr_factor},
                             {"rollbacks", rollbacks_.count}});
  WriteEvent({{"event", "rolled_back"},
              {"guard", alarm.guard},
              {"from_step", from},
              {"to_step", state_.step},
              {"skipped_prompts", skipped},
              {"lr_factor", rollbacks_.lr_factor},
              {"rollbacks", rollbacks_.count}});
  run_state_->Update([&](RunStatus& status) {
    status.step = state_.step;
    status.last_checkpoint = *path;
    status.saved_step = state_.step;
  });
  return absl::OkStatus();
}

absl::Status TrainingRun::RecordRollback(const Rollbacks& rollbacks,
                                         const std::optional<RollbackIntent>& intent) {
  return group_->AgreeOnStatus(is_root() ? WriteRollbacks(rollbacks, run_.run_dir(), intent)
                                         : absl::OkStatus());
}

absl::Status TrainingRun::RestoreWatch() {
  const auto rollbacks = ReadRollbacks(run_.run_dir(), state_.step);
  if (!rollbacks.ok()) return BadData(rollbacks.status());
  rollbacks_ = *rollbacks;
  const std::string dir = run_.checkpoint_dir();
  if (dir.empty()) return absl::OkStatus();
  SetPending(nullptr);
  if (const std::string left = dir + "/" + kPendingDir; FileExists(left)) {
    auto pending = ReadPendingStep(left, config_, context_.shares, is_root());
    if (!pending.ok()) return BadData(pending.status());
    SetPending(std::make_shared<const PendingStep>(*std::move(pending)));
  }
  newest_checkpoint_ = state_.step;
  last_good_checkpoint_ = -1;
  guard_ = CollapseGuard(config_.guard);
  if (FileExists(dir + "/guard.json")) {
    const auto text = ReadFileToString(dir + "/guard.json");
    const absl::Status restored = text.ok() ? guard_.Restore(*text) : text.status();
    if (!restored.ok()) return BadData(Annotate(restored, dir + "/guard.json"));
  }
  if (FileExists(dir + "/probe.json")) {
    const auto text = ReadFileToString(dir + "/probe.json");
    auto probe = text.ok() ? ReadProbe(*text) : absl::StatusOr<std::vector<Rollout>>(text.status());
    if (!probe.ok()) return BadData(Annotate(probe.status(), dir + "/probe.json"));
    probe_ = *std::move(probe);
  }
  return SkipUndonePrompts();
}

// The steps that a roll-back has undone would raise the same alarm on the same prompts. A step that
// is half done needs its prompts, however.
absl::Status TrainingRun::SkipUndonePrompts() {
  if (!rollbacks_.SkipsAt(state_.step) || pending_ != nullptr) return absl::OkStatus();
  state_.epoch = rollbacks_.epoch;
  state_.epoch_index = rollbacks_.epoch_index;
  const absl::Status position = order_->Restore(state_.epoch, state_.epoch_index);
  return position.ok() ? position : BadData(Annotate(position, "rollbacks.json"));
}

// Events are kept even if a roll-back cuts the metrics.
void TrainingRun::WriteEvent(nlohmann::ordered_json event) {
  if (!is_root()) return;
  event["time"] = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  auto writer = JsonlWriter::Open(run_.run_dir() + "/events.jsonl");
  const absl::Status written = writer.ok() ? writer->Write(event) : writer.status();
  if (!written.ok()) LogWarning("an event is not written", {{"error", written}});
}

void TrainingRun::PinCheckpoints() {
  run_.Pin({best_.step(), named_best_step_, last_good_checkpoint_});
}

}  // namespace taopd
