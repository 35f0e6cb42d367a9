// What a distillation run does when its metrics look wrong, and what it writes aside for a look.
#include <nlohmann/json.hpp>
#include <set>

#include "common/base/log.h"
#include "common/io/file.h"
#include "common/io/jsonl.h"
#include "trainer/commands/train/training_run.h"
#include "trainer/step/kl_probe.h"

namespace taopd {

void TrainingRun::MeasureForGuard(const StepResult& result, Metrics* metrics) {
  // Rank 0's metrics go to all.
  if (config_.guard.kl_to_start.limit == 0 || !is_root()) return;
  if (state_.step == 1) {
    // They were generated before the first update.
    const auto size = std::min<size_t>(result.rollouts.size(), config_.guard.kl_probe_rollouts);
    probe_.assign(result.rollouts.begin(), result.rollouts.begin() + static_cast<int64_t>(size));
  }
  if (probe_.empty() || state_.step % config_.guard.kl_every != 0) return;
  metrics->emplace_back("policy/kl_to_start",
                        MeasureKlToStart(student_.decoder.get(), context_.head, probe_,
                                         config_.trainer.MicroBatchTokens()));
}

std::optional<CommandFailure> TrainingRun::ObserveGuard(const Metrics& metrics) {
  GuardAlarm worst;
  const std::vector<GuardAlarm> alarms = guard_.Observe(state_.step, metrics);
  // The step's rollouts came from the weights of the step before.
  if (guard_.last_good_step() == state_.step && newest_checkpoint_ >= 0) {
    last_good_checkpoint_ = newest_checkpoint_;
  }
  for (const GuardAlarm& alarm : alarms) {
    // At its first step, and when it begins to act; in between it would only repeat itself.
    if (alarm.num_in_a_row == 1 || alarm.num_in_a_row == config_.guard.patience) {
      LogWarning("guard", {{"guard", alarm.guard},
                           {"step", state_.step},
                           {"metric", alarm.metric},
                           {"value", alarm.value},
                           {"limit", alarm.limit},
                           {"steps_in_a_row", alarm.num_in_a_row},
                           {"action", GuardActionName(alarm.action)}});
      WriteEvent({{"event", "guard"},
                  {"step", state_.step},
                  {"guard", alarm.guard},
                  {"metric", alarm.metric},
                  {"value", alarm.value},
                  {"limit", alarm.limit},
                  {"steps_in_a_row", alarm.num_in_a_row},
                  {"action", GuardActionName(alarm.action)}});
    }
    if (alarm.action > worst.action) worst = alarm;
  }
  const std::string what =
      Concat("guard.", worst.guard, ": ", worst.metric, " = ", worst.value, " is beyond ",
             worst.limit, " for ", worst.num_in_a_row, " steps in a row");
  switch (worst.action) {
    case GuardAction::kNone:
    case GuardAction::kWarn:
      return std::nullopt;
    case GuardAction::kPause:
      // Once: who resumes the run has seen it.
      if (worst.num_in_a_row == config_.guard.patience) run_state_->RequestPause(true);
      return std::nullopt;
    case GuardAction::kStop:
      return CommandFailure{kExitNumerics, Internal(what)};
    case GuardAction::kRollBack:
      if (rollbacks_.count >= config_.guard.max_rollbacks) {
        return CommandFailure{
            kExitNumerics, Internal(what, " after ", rollbacks_.count, " roll-backs, the limit")};
      }
      return RollBack(worst);
  }
  return std::nullopt;
}

std::optional<CommandFailure> TrainingRun::RollBack(const GuardAlarm& alarm) {
  // The metrics of a step are those of the weights before its update.
  const int64_t from = state_.step, good = guard_.last_good_step() - 1;
  // First the record: a crash from here on must not forget that the rate is lower.
  rollbacks_.count += 1;
  rollbacks_.lr_factor *= config_.guard.rollback_lr_factor;
  absl::Status written = is_root() ? WriteRollbacks(rollbacks_, run_.run_dir()) : absl::OkStatus();
  written = group_->AgreeOnStatus(written);
  if (!written.ok()) return CommandFailure{kExitInternal, written};
  TakeSavedBeside(/*waits=*/true);
  const auto path = run_.RollBack(good);
  output_.store(&run_.output());
  if (!path.ok()) {
    const std::string what = Concat("guard.", alarm.guard, " asks to roll back");
    return CommandFailure{absl::IsNotFound(path.status()) ? kExitNumerics : kExitData,
                          Annotate(path.status(), what)};
  }
  const absl::Status position = order_->Restore(state_.epoch, state_.epoch_index);
  if (!position.ok()) return BadData(position);
  if (auto failure = AgreeOnFailure(group_, RestoreWatch())) return failure;
  has_saved_ = true;
  LogWarning("rolled back", {{"guard", alarm.guard},
                             {"from_step", from},
                             {"to_step", state_.step},
                             {"checkpoint", *path},
                             {"lr_factor", rollbacks_.lr_factor},
                             {"rollbacks", rollbacks_.count}});
  WriteEvent({{"event", "rolled_back"},
              {"guard", alarm.guard},
              {"from_step", from},
              {"to_step", state_.step},
              {"lr_factor", rollbacks_.lr_factor},
              {"rollbacks", rollbacks_.count}});
  run_state_->Update([&](RunStatus& status) {
    status.step = state_.step;
    status.last_checkpoint = *path;
  });
  return std::nullopt;
}

std::optional<CommandFailure> TrainingRun::RestoreWatch() {
  const auto rollbacks = ReadRollbacks(run_.run_dir());
  if (!rollbacks.ok()) return BadData(rollbacks.status());
  rollbacks_ = *rollbacks;
  best_ = BestEvaluation(config_.trainer.best_is == "smallest");
  for (const auto& [step, value] : run_.recorded().values) best_.Observe(step, value);
  const std::string dir = run_.checkpoint_dir();
  if (dir.empty()) return std::nullopt;
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
  PinCheckpoints();
  return std::nullopt;
}

// What went wrong is kept, whatever becomes of the metrics of a run that goes back.
void TrainingRun::WriteEvent(nlohmann::ordered_json event) {
  if (!is_root()) return;
  event["time"] = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  auto writer = JsonlWriter::Open(run_.run_dir() + "/events.jsonl");
  const absl::Status written = writer.ok() ? writer->Write(event) : writer.status();
  if (!written.ok()) LogWarning("an event is not written", {{"error", written}});
}

void TrainingRun::PinCheckpoints() { run_.Pin({best_.step(), last_good_checkpoint_}); }

}  // namespace taopd
