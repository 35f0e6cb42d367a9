// The trainer as a daemon: gRPC control (proto/taopd/v1/trainer.proto, grpc.health.v1, reflection)
// and HTTP /status (JSON), /metrics (Prometheus), /healthz on ports of its own.
//
// RunState is what the training loop and the servers share: the loop publishes status and asks what
// was requested; servers read and request. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/metrics/sink.h"

namespace taopd {

enum class TrainerPhase {
  kStarting,
  kRunning,
  kPaused,
  kWaitingForTeacher,
  kEvaluating,
  kSaving,
  kStopping,
  kFinished
};
const char* TrainerPhaseName(TrainerPhase phase);  // "running", "waiting_for_teacher", ...

struct RunStatus {
  std::string run_name;
  TrainerPhase phase = TrainerPhase::kStarting;
  int64_t step = 0;  // steps finished
  int64_t total_steps = 0;
  Metrics metrics;  // of the last finished step
  std::string last_checkpoint;
  double eta_seconds = 0;
};

class RunState {
 public:
  using SaveDone = std::function<void(absl::StatusOr<std::string>)>;  // gets the checkpoint's path

  // Of the training loop.
  // `change` runs under the lock: it must not call this object. With kFinished, save requests that
  // wait are answered UNAVAILABLE, and so is every later one.
  void Update(const std::function<void(RunStatus&)>& change);
  bool stop_requested() const;
  bool pause_requested() const;
  // Blocks while paused and not stopped. A save that is requested during the pause is not left
  // waiting: `save` is called, and is to do what the loop does when TakeSaveRequest is true.
  void WaitWhilePaused(const std::function<void()>& save);
  // True once per SaveCheckpoint request batch; the loop then saves and calls CheckpointSaved.
  bool TakeSaveRequest();
  // Wakes the requests of the batch that was taken, records the path. Also to be called for a
  // checkpoint that nobody asked for.
  void CheckpointSaved(const absl::StatusOr<std::string>& path);

  // Of servers and signal handling threads.
  RunStatus status() const;
  void RequestStop();
  void RequestPause(bool paused);
  // Waits for the checkpoint until `deadline`, then gives DEADLINE_EXCEEDED.
  absl::StatusOr<std::string> RequestSave(absl::Time deadline);
  // `done` is called once, on the loop's thread or, when the request is refused, on this one
  // (RESOURCE_EXHAUSTED above kMaxSaveRequests, UNAVAILABLE when the run has finished). Returns a
  // name for CancelSave.
  uint64_t RequestSave(SaveDone done);
  // True: `done` has not been called and will not be.
  bool CancelSave(uint64_t id);

  static constexpr size_t kMaxSaveRequests = 256;  // that wait at a time

 private:
  struct SaveRequest {
    uint64_t id;
    SaveDone done;
  };

  mutable absl::Mutex mutex_;
  RunStatus status_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool pause_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_save_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<SaveRequest> save_requested_ ABSL_GUARDED_BY(mutex_);
  std::vector<SaveRequest> save_taken_ ABSL_GUARDED_BY(mutex_);
};

struct ControlServerOptions {
  std::string host = "127.0.0.1";
  int64_t http_port = 0;  // 0 = the kernel picks
  int64_t grpc_port = 0;
};

class ControlServer {
 public:
  // `prometheus_text` renders the metrics page (common/metrics/prometheus.h), on any thread. A port
  // in use is an UNAVAILABLE error that names host:port; a port or host out of range is
  // INVALID_ARGUMENT. `state` and what `prometheus_text` refers to outlive the server.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(
      const ControlServerOptions& options, RunState* state,
      std::function<std::string()> prometheus_text);
  virtual ~ControlServer() = default;  // stops both
  virtual int http_port() const = 0;
  virtual int grpc_port() const = 0;
};

}  // namespace taopd
