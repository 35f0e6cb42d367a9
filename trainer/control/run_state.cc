#include "trainer/control/run_state.h"

#include <optional>
#include <utility>

namespace taopd {

void RunState::Update(const std::function<void(RunStatus&)>& change) {
  absl::MutexLock lock(&mutex_);
  change(status_);
}

ExitCode RunState::stop_code() const {
  absl::MutexLock lock(&mutex_);
  return stop_;
}

void RunState::SetPhase(TrainerPhase phase) {
  Update([phase](RunStatus& status) { status.phase = phase; });
}

bool RunState::pause_requested() const {
  absl::MutexLock lock(&mutex_);
  return pause_;
}

bool RunState::WaitWhilePaused(const std::function<void()>& save, absl::Time deadline) {
  std::optional<TrainerPhase> before;
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      // The phase changes under the lock of pause_, so that is_paused shows each pause.
      if (!before && pause_ && stop_ == kExitOk)
        before = std::exchange(status_.phase, TrainerPhase::kPaused);
      auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !pause_ || stop_ != kExitOk || save_requested_;
      };
      const bool is_late = !mutex_.AwaitWithDeadline(absl::Condition(&has_work), deadline);
      ++num_progress_;
      if (!pause_ || stop_ != kExitOk || is_late) {
        if (before) status_.phase = *before;
        return is_late;
      }
    }
    if (TakeSaveRequest()) save();
  }
}

bool RunState::WaitForGiveUp(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&gives_up_), timeout);
  return gives_up_;
}

bool RunState::TakeSaveRequest() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(save_requested_, false);
}

void RunState::Progress() {
  absl::MutexLock lock(&mutex_);
  ++num_progress_;
}

int64_t RunState::num_progress() const {
  absl::MutexLock lock(&mutex_);
  return num_progress_;
}

bool RunState::is_paused() const {
  absl::MutexLock lock(&mutex_);
  return pause_ && stop_ == kExitOk && status_.phase == TrainerPhase::kPaused;
}

RunStatus RunState::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void RunState::RequestStop(ExitCode code) {
  absl::MutexLock pass_on_lock(&pass_on_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    gives_up_ = gives_up_ || status_.phase == TrainerPhase::kWaitingForStorage;
    if (code <= stop_) return;
    stop_ = code;
  }
  if (pass_on_) pass_on_(code);
}

void RunState::PassStopsOn(std::function<void(ExitCode)> pass_on) {
  absl::MutexLock pass_on_lock(&pass_on_mutex_);
  pass_on_ = std::move(pass_on);
  if (const ExitCode code = stop_code(); pass_on_ && code != kExitOk) pass_on_(code);
}

void RunState::RequestPause(bool paused) {
  absl::MutexLock lock(&mutex_);
  pause_ = paused;
}

absl::Status RunState::RequestSave() {
  absl::MutexLock lock(&mutex_);
  if (status_.phase == TrainerPhase::kFinished)
    return Unavailable("the run has finished; nothing is saved any more");
  save_requested_ = true;
  return absl::OkStatus();
}

}  // namespace taopd
