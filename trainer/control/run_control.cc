#include "trainer/control/run_control.h"

#include <optional>
#include <utility>

namespace taopd {

void RunControl::Update(const std::function<void(RunStatus&)>& change) {
  absl::MutexLock lock(&mutex_);
  change(status_);
}

ExitCode RunControl::stop_code() const {
  absl::MutexLock lock(&mutex_);
  return stop_;
}

void RunControl::SetPhase(TrainerPhase phase) {
  Update([phase](RunStatus& status) { status.phase = phase; });
}

bool RunControl::pause_requested() const {
  absl::MutexLock lock(&mutex_);
  return pause_;
}

bool RunControl::WaitWhilePaused(const std::function<void()>& save, absl::Time deadline) {
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

bool RunControl::WaitForGiveUp(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&gives_up_), timeout);
  return gives_up_;
}

bool RunControl::TakeSaveRequest() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(save_requested_, false);
}

void RunControl::Progress() {
  absl::MutexLock lock(&mutex_);
  ++num_progress_;
}

int64_t RunControl::num_progress() const {
  absl::MutexLock lock(&mutex_);
  return num_progress_;
}

bool RunControl::is_paused() const {
  absl::MutexLock lock(&mutex_);
  return pause_ && stop_ == kExitOk && status_.phase == TrainerPhase::kPaused;
}

RunStatus RunControl::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

void RunControl::RequestStop(ExitCode code) {
  absl::MutexLock pass_on_lock(&pass_on_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    gives_up_ = gives_up_ || status_.phase == TrainerPhase::kWaitingForStorage;
    if (code <= stop_) return;
    stop_ = code;
  }
  if (pass_on_) pass_on_(code);
}

void RunControl::PassStopsOn(std::function<void(ExitCode)> pass_on) {
  absl::MutexLock pass_on_lock(&pass_on_mutex_);
  pass_on_ = std::move(pass_on);
  if (const ExitCode code = stop_code(); pass_on_ && code != kExitOk) pass_on_(code);
}

void RunControl::RequestPause(bool paused) {
  absl::MutexLock lock(&mutex_);
  pause_ = paused;
}

absl::Status RunControl::RequestSave() {
  absl::MutexLock lock(&mutex_);
  if (status_.phase == TrainerPhase::kFinished)
    return Unavailable("the run has finished; nothing is saved any more");
  save_requested_ = true;
  return absl::OkStatus();
}

}  // namespace taopd
