// The trainer as a daemon: gRPC control (proto/taopd/v1/trainer.proto, grpc.health.v1, reflection) and
// HTTP /status (JSON), /metrics (Prometheus), /healthz on ports of its own.
//
// RunState is what the training loop and the servers share: the loop publishes status and asks what
// was requested; servers read and request. Thread-safe.
#pragma once

#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/metrics/sink.h"

namespace taopd {

enum class TrainerPhase { kStarting, kRunning, kPaused, kWaitingForTeacher, kEvaluating, kSaving, kStopping, kFinished };
const char* TrainerPhaseName(TrainerPhase phase);  // "running", "waiting_for_teacher", ...

struct RunStatus {
  std::string run_name;
  TrainerPhase phase = TrainerPhase::kStarting;
  int64_t step = 0;          // steps finished
  int64_t total_steps = 0;
  Metrics metrics;           // of the last finished step
  std::string last_checkpoint;
  double eta_seconds = 0;
};

class RunState {
 public:
  // Of the training loop.
  void Update(const std::function<void(RunStatus&)>& change);
  bool stop_requested() const;
  bool pause_requested() const;
  // Blocks while paused and not stopped.
  void WaitWhilePaused();
  // True once per SaveCheckpoint request batch; the loop then saves and calls CheckpointSaved.
  bool TakeSaveRequest();
  void CheckpointSaved(const absl::StatusOr<std::string>& path);  // wakes the requests, records the path

  // Of servers and signal handling threads.
  RunStatus status() const;
  void RequestStop();
  void RequestPause(bool paused);
  // Waits for the checkpoint until `deadline`.
  absl::StatusOr<std::string> RequestSave(absl::Time deadline);

 private:
  mutable absl::Mutex mutex_;
  RunStatus status_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool pause_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t save_requested_ ABSL_GUARDED_BY(mutex_) = 0;  // generation counters
  uint64_t save_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t save_done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::StatusOr<std::string> save_result_ ABSL_GUARDED_BY(mutex_) = std::string();
};

struct ControlServerOptions {
  std::string host = "127.0.0.1";
  int64_t http_port = 0;  // 0 = the kernel picks
  int64_t grpc_port = 0;
};

class ControlServer {
 public:
  // `prometheus_text` renders the metrics page (common/metrics/prometheus.h). A port in use is an
  // UNAVAILABLE error that names it. Both outlive the server.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const ControlServerOptions& options, RunState* state,
                                                              std::function<std::string()> prometheus_text);
  virtual ~ControlServer() = default;  // stops both
  virtual int http_port() const = 0;
  virtual int grpc_port() const = 0;
};

}  // namespace taopd
