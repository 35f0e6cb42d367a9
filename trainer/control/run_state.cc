#include "trainer/control/run_state.h"

#include <absl/synchronization/notification.h>

#include <algorithm>
#include <utility>

namespace taopd {
namespace {

absl::Status Finished() { return Unavailable("the run has finished; nothing is saved any more"); }

}  // namespace

const char* TrainerPhaseName(TrainerPhase phase) {
  switch (phase) {
    case TrainerPhase::kStarting:
      return "starting";
    case TrainerPhase::kRunning:
      return "running";
    case TrainerPhase::kPaused:
      return "paused";
    case TrainerPhase::kWaitingForTeacher:
      return "waiting_for_teacher";
    case TrainerPhase::kWaitingForStorage:
      return "waiting_for_storage";
    case TrainerPhase::kEvaluating:
      return "evaluating";
    case TrainerPhase::kSaving:
      return "saving";
    case TrainerPhase::kStopping:
      return "stopping";
    case TrainerPhase::kFinished:
      return "finished";
  }
  return "unknown";
}

void RunState::Update(const std::function<void(RunStatus&)>& change) {
  std::vector<SaveRequest> refused;
  {
    absl::MutexLock lock(&mutex_);
    change(status_);
    if (status_.phase == TrainerPhase::kFinished) {
      refused.swap(save_requested_);
      std::move(save_taken_.begin(), save_taken_.end(), std::back_inserter(refused));
      save_taken_.clear();
    }
  }
  for (SaveRequest& request : refused) request.done(Finished());
}

ExitCode RunState::stop_code() const {
  absl::MutexLock lock(&mutex_);
  return stop_;
}

bool RunState::pause_requested() const {
  absl::MutexLock lock(&mutex_);
  return pause_;
}

void RunState::WaitWhilePaused(const std::function<void()>& save) {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return !pause_ || stop_ != kExitOk || !save_requested_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (!pause_ || stop_ != kExitOk) return;
    }
    if (TakeSaveRequest()) save();
  }
}

bool RunState::WaitToGiveUp(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&gives_up_), timeout);
  return gives_up_;
}

bool RunState::TakeSaveRequest() {
  absl::MutexLock lock(&mutex_);
  if (save_requested_.empty()) return false;
  std::move(save_requested_.begin(), save_requested_.end(), std::back_inserter(save_taken_));
  save_requested_.clear();
  return true;
}

void RunState::CheckpointSaved(const absl::StatusOr<std::string>& path) {
  std::vector<SaveRequest> answered;
  {
    absl::MutexLock lock(&mutex_);
    if (path.ok()) status_.last_checkpoint = *path;
    answered.swap(save_taken_);
  }
  for (SaveRequest& request : answered) request.done(path);
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

absl::StatusOr<std::string> RunState::RequestSave(absl::Time deadline) {
  absl::Notification answered;
  absl::StatusOr<std::string> result = std::string();
  const uint64_t id = RequestSave([&](absl::StatusOr<std::string> path) {
    result = std::move(path);
    answered.Notify();
  });
  if (!answered.WaitForNotificationWithDeadline(deadline)) {
    if (CancelSave(id)) {
      return absl::DeadlineExceededError("the checkpoint was not saved before the deadline");
    }
    answered.WaitForNotification();  // being answered at this moment
  }
  return result;
}

uint64_t RunState::RequestSave(SaveDone done) {
  absl::Status refusal;
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_save_id_++;
    const size_t num_waiting = save_requested_.size() + save_taken_.size();
    if (status_.phase == TrainerPhase::kFinished) {
      refusal = Finished();
    } else if (num_waiting >= kMaxSaveRequests) {
      refusal = ResourceExhausted(num_waiting, " requests wait for a checkpoint; the limit is ",
                                  kMaxSaveRequests);
    } else {
      save_requested_.push_back({id, std::move(done)});
    }
  }
  if (!refusal.ok()) done(refusal);
  return id;
}

bool RunState::CancelSave(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto has_id = [id](const SaveRequest& request) { return request.id == id; };
  return std::erase_if(save_requested_, has_id) + std::erase_if(save_taken_, has_id) > 0;
}

}  // namespace taopd
