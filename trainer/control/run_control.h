// The requests and the status that the training loop shares with the control server and the signal
// handling threads. The loop publishes its status and takes requests. The others read the status
// and make requests. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/exit_code.h"
#include "common/base/status.h"
#include "common/config/settings.h"
#include "common/metrics/sink.h"

namespace taopd {

enum class TrainerPhase {
  kStarting,
  kRunning,
  kPaused,
  kWaitingForTeacher,
  kWaitingForStorage,  // the run waits until it can write its state
  kEvaluating,
  kSaving,
  kStopping,
  kFinished
};
inline EnumNames<TrainerPhase> NamesOf(TrainerPhase) {
  return {{TrainerPhase::kStarting, "starting"},
          {TrainerPhase::kRunning, "running"},
          {TrainerPhase::kPaused, "paused"},
          {TrainerPhase::kWaitingForTeacher, "waiting_for_teacher"},
          {TrainerPhase::kWaitingForStorage, "waiting_for_storage"},
          {TrainerPhase::kEvaluating, "evaluating"},
          {TrainerPhase::kSaving, "saving"},
          {TrainerPhase::kStopping, "stopping"},
          {TrainerPhase::kFinished, "finished"}};
}

// The state of the teacher, as the trainer sees it.
struct TeacherHealth {
  std::string name;       // of its model
  bool waiting = false;   // every endpoint is failing now
  uint64_t requests = 0;  // since the start
  uint64_t retries = 0;   // attempts beyond each request's first
  uint64_t failures = 0;  // requests answered with an error
  int64_t in_flight = 0;  // attempts on the wire now
  int64_t queued = 0;     // requests that wait in the client
};

struct RunStatus {
  std::string run_name;
  TrainerPhase phase = TrainerPhase::kStarting;
  int64_t step = 0;  // steps finished
  int64_t total_steps = 0;
  Metrics metrics;              // of the last finished step
  std::string last_checkpoint;  // its path; empty before the first
  double eta_seconds = 0;       // expected time until the last step ends, as on the console
  TeacherHealth teacher = {};
  double plan_gb = 0;                // device memory of the memory plan, in GiB; 0 without a plan
  std::string storage_problem = {};  // why the last checkpoint is not saved; empty if it is
  int64_t saved_step = -1;           // of last_checkpoint; -1 before the first
};

class RunControl {
 public:
  // ---- For the training loop ----

  // Changes the status. `change` runs under the lock: it must not call this object.
  void Update(const std::function<void(RunStatus&)>& change);
  void SetPhase(TrainerPhase phase);
  // Returns the exit code of the requested stop, kExitStopped or kExitStoppedByUser, or kExitOk if
  // no stop was requested.
  ExitCode stop_code() const;
  bool stop_requested() const { return stop_code() != kExitOk; }
  // From now on, each stop request that changes stop_code calls `pass_on`, on the requesting
  // thread; after an earlier request, this call calls it. Null removes the callback, which is not
  // called after this returns. It must not block and may call RequestStop of other objects only.
  void PassStopsOn(std::function<void(ExitCode)> pass_on);
  bool pause_requested() const;
  // Blocks while the run is paused and no stop is requested, in the phase kPaused, until `deadline`
  // at most. If a save is requested meanwhile, calls `save`, which must do what the loop does after
  // TakeSaveRequest. Returns whether the deadline has passed and the run is still paused.
  bool WaitWhilePaused(const std::function<void()>& save,
                       absl::Time deadline = absl::InfiniteFuture());
  // Waits up to `timeout` for a stop request in the phase kWaitingForStorage. Returns whether there
  // was one: it tells the run to end without its state.
  bool WaitForGiveUp(absl::Duration timeout);
  // Returns whether a save was requested since the last call. The loop must then save.
  bool TakeSaveRequest();
  // Counts progress (see Liveness): a micro-batch, the end of a step, the start or the end of a
  // checkpoint, an attempt to write to a full disk, or a result of an evaluation beside training.
  void Progress();

  // ---- For servers and signal handling threads ----

  RunStatus status() const;
  // The number of calls of Progress; it counts the end of a pause as well.
  int64_t num_progress() const;
  // Returns true while the loop is paused, until a person ends the pause.
  bool is_paused() const;
  // Asks the run to stop. `code` is kExitStopped or kExitStoppedByUser; of several requests the
  // largest code counts. In the phase kWaitingForStorage the run then ends without its state.
  void RequestStop(ExitCode code);
  void RequestPause(bool paused);
  // Returns UNAVAILABLE if the run has finished: nothing is saved any more. Several requests before
  // the next checkpoint count as one.
  absl::Status RequestSave();

 private:
  mutable absl::Mutex mutex_;
  RunStatus status_ ABSL_GUARDED_BY(mutex_);
  ExitCode stop_ ABSL_GUARDED_BY(mutex_) = kExitOk;
  bool pause_ ABSL_GUARDED_BY(mutex_) = false;
  bool gives_up_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t num_progress_ ABSL_GUARDED_BY(mutex_) = 0;
  bool save_requested_ ABSL_GUARDED_BY(mutex_) = false;
  // Taken before mutex_, and held while pass_on_ runs.
  absl::Mutex pass_on_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::function<void(ExitCode)> pass_on_ ABSL_GUARDED_BY(pass_on_mutex_);
};

}  // namespace taopd
