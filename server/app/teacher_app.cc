#include "server/app/teacher_app.h"

#include <absl/time/clock.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <thread>
#include <utility>

#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/service/service_manager.h"
#include "common/io/atomic_file.h"
#include "common/io/file.h"
#include "common/model/device_failure.h"
#include "server/app/canary_runner.h"
#include "server/app/end_watch.h"
#include "server/app/listeners.h"
#include "server/metrics/access_log.h"
#include "server/metrics/metered_engine.h"
#include "server/metrics/request_trace.h"
#include "server/metrics/server_metrics.h"
#include "server/serving/policy/policy_updates.h"

namespace taopd {
namespace {

constexpr timespec kHealthInterval = {.tv_sec = 0, .tv_nsec = 500'000'000};
// The time for answers to leave a process whose device has failed.
constexpr absl::Duration kFailedDrain = absl::Seconds(5);
// The time that the process has to end after the deadline of a drain. By then only two things are
// left: the current engine step, and error replies to the requests that it aborts.
constexpr absl::Duration kEndGrace = absl::Seconds(10);
// The part of it in which answers that are ready by then leave.
constexpr absl::Duration kAnswerGrace = absl::Seconds(2);
// The work for which an end waits if a device hangs (EndWatch).
constexpr char kEngineStep[] = "a step of the engine that has not returned";

// gRPC 1.51 stops accepting for good when the process runs out of file descriptors (CVE-2023-4785).
void RaiseFileDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  LogWarning("the limit of file descriptors was not raised", {{"error", std::strerror(errno)}});
}

// The loading thread shares the object, because it may outlive RunTeacher.
class TeacherApp : public std::enable_shared_from_this<TeacherApp> {
 public:
  // `end_watch` outlives the object, because destroying an engine joins its thread. Only an object
  // that the loading thread keeps lives longer, and it no longer uses `end_watch`.
  TeacherApp(const TeacherOptions& options, ModelLoader load, EndWatch* end_watch)
      : options_(options),
        end_watch_(end_watch),
        load_(std::move(load)),
        state_(Clock::Real(), absl::Seconds(options.stall_timeout),
               options.max_message_memory_bytes, options.max_client_memory_share),
        policy_(&state_, options.weights_dir),
        canary_(&state_, absl::Seconds(options.canary_interval)),
        listeners_(options_, &state_) {}

  int Run(std::ostream& out) {
    sigset_t signals = BlockSignals();
    RaiseFileDescriptorLimit();
    absl::Status ready = state_.trusted_proxies().Add(options_.trusted_proxies);
    if (ready.ok()) ready = OpenLogs();
    if (ready.ok()) ready = listeners_.LoadSecrets();
    if (!ready.ok()) {
      LogError("cannot start", {{"error", std::string(ready.message())}});
      return kExitUsage;
    }
    PolicyUpdates* const policy = options_.trainable ? &policy_ : nullptr;
    if (const absl::Status listening = listeners_.Listen(&metrics_, policy, out); !listening.ok()) {
      LogError("cannot listen", {{"error", std::string(listening.message())}});
      return kExitUnavailable;
    }
    loader_ = std::thread([self = shared_from_this()] { self->Load(); });
    service_.WatchWith([this] { return state_.Alive().ok(); });
    const int exit_code = WaitForEnd(signals);
    sigdelset(&signals, SIGHUP);
    end_watch_->EndAtNewRequest(signals, /*is_requested=*/exit_code == kExitOk);
    if (exit_code == kExitOk) AnnounceEnd();
    Drain(exit_code == kExitOk ? absl::Seconds(options_.shutdown_timeout)
                               : std::min(absl::Seconds(options_.shutdown_timeout), kFailedDrain));
    return exit_code;
  }

 private:
  sigset_t BlockSignals() const {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
    // If there is nothing to reload or to reopen, SIGHUP keeps its default effect.
    if (!options_.api_key_file.empty() || !options_.ssl_certfile.empty() ||
        !options_.access_log.empty())
      sigaddset(&signals, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every thread started later
    ::signal(SIGPIPE, SIG_IGN);
    return signals;
  }

  absl::Status OpenLogs() {
    if (!options_.trace.empty()) {
      trace_.emplace(absl::Now());
      TAOPD_RETURN_IF_ERROR(Annotate(AtomicFile::Create(options_.trace).status(), "trace"));
    }
    if (options_.access_log.empty()) return absl::OkStatus();
    TAOPD_ASSIGN_OR_RETURN(access_log_, AccessLog::Open(options_.access_log));
    metrics_.SetAccessLog(access_log_.get());
    return absl::OkStatus();
  }

  // Runs on the loading thread and catches all exceptions of libraries.
  void Load() {
    absl::Status status;
    try {
      status = LoadOrFail();
    } catch (const std::exception& error) {
      status = Internal("loading threw: ", error.what());
    }
    if (!status.ok()) {
      LogError("cannot serve the model",
               {{"model", options_.model}, {"error", std::string(status.message())}});
      state_.SetFailed(status);
      load_failure_code_ = ExitCodeOfLoad(status);
    }
    load_ended_ = true;
  }

  absl::Status LoadOrFail() {
    const absl::Time begun_at = absl::Now();
    TAOPD_ASSIGN_OR_RETURN(std::shared_ptr<ServedModel> model, load_());
    model->engine = MakeMeteredEngine(std::move(model->engine), metrics_.OfModel(model->name),
                                      trace_ ? &*trace_ : nullptr, state_.clock());
    LogInfo("model loaded", {{"model", model->name},
                             {"revision", model->revision},
                             {"dtype", model->dtype},
                             {"vocab_size", model->limits.vocab_size},
                             {"max_model_len", model->limits.max_model_len},
                             {"max_generation_len", std::min(model->limits.max_model_len,
                                                             model->limits.max_generation_len)},
                             {"max_logprobs", model->limits.max_logprobs},
                             {"text_prompts", model->tokenizer != nullptr},
                             {"seconds", absl::ToDoubleSeconds(absl::Now() - begun_at)}});
    if (model->tokenizer == nullptr) {
      LogWarning("no tokenizer.json: token ids only", {{"model", options_.model}});
    }
    if (model->weights != nullptr) policy_.Begin(model.get());
    TAOPD_RETURN_IF_ERROR(canary_.RunAtStart(model, absl::Seconds(options_.stall_timeout)));
    state_.SetReady(std::move(model));
    listeners_.UpdateHealth();
    return state_.canary().ok() ? AnnounceReady() : absl::OkStatus();
  }

  // Tells the service manager and the readers of the ready file that the model is served. The
  // loading thread calls it before load_ended_; if the canary fails there, the main thread calls
  // it when the canary first passes.
  absl::Status AnnounceReady() {
    is_announced_ = true;
    service_.Ready();
    if (options_.ready_file.empty()) return absl::OkStatus();
    const nlohmann::ordered_json ready = {{"http_port", listeners_.http_port()},
                                          {"grpc_port", listeners_.grpc_port()},
                                          {"pid", ::getpid()}};
    const absl::Status written = WriteFileAtomically(options_.ready_file, ready.dump() + "\n");
    return written.ok() ? written : Internal("ready_file: ", written.message());
  }

  // Waits for a signal that ends the server, or for a fatal failure. Returns the exit code.
  int WaitForEnd(const sigset_t& signals) {
    for (;;) {
      const int signal_number = ::sigtimedwait(&signals, nullptr, &kHealthInterval);
      if (signal_number == SIGHUP) {
        Reopen();
      } else if (signal_number > 0) {
        LogInfo("draining", {{"signal", signal_number},
                             {"delay_s", options_.drain_delay},
                             {"timeout_s", options_.shutdown_timeout}});
        return kExitOk;
      }
      if (const std::optional<int> code = FatalFailure()) return *code;
      if (load_ended_) Tick();
    }
  }

  // Loads keys and certificates again and reopens the access log.
  void Reopen() {
    absl::Status reopened = listeners_.LoadSecrets();
    if (access_log_ != nullptr) reopened.Update(access_log_->Reopen());
    if (reopened.ok()) return LogInfo("keys, certificates and the access log were reopened");
    LogError("reload failed; the previous keys, certificates or log stay in use",
             {{"error", std::string(reopened.message())}});
  }

  // Returns the exit code of a failure that only a new process can fix: of loading, of a listener
  // or of the device. Logs the failure.
  std::optional<int> FatalFailure() {
    if (load_failure_code_ != 0) return load_failure_code_;
    if (const char* listener = listeners_.failed()) {
      LogError("a listener can no longer accept connections", {{"listener", listener}});
      return kExitInternal;
    }
    const auto model = load_ended_ ? state_.model() : nullptr;
    const EngineStats stats = model != nullptr ? model->engine->stats() : EngineStats();
    if (!stats.device_failed) return std::nullopt;
    LogError("the device no longer computes: the process ends, so that a new one can start",
             {{"reason", stats.device_error}, {"kernel", stats.device_kernel}});
    return stats.device_kernel.empty() ? kExitInternal : kExitDevice;
  }

  // Runs the canary, trims the heap, copies the state of /health and /ready to gRPC's health
  // service, and reports readiness.
  void Tick() {
    canary_.Follow(state_.model());
    canary_.Tick();
    state_.heap_trim().Tick(absl::Now());
    listeners_.UpdateHealth();
    ReportReadiness();
  }

  // Announces the first readiness, unless loading has done so, and logs each change.
  void ReportReadiness() {
    const std::string reason(state_.Ready().message());
    if (reason.empty() && !is_announced_) {
      if (const absl::Status announced = AnnounceReady(); !announced.ok())
        LogError("readiness was not announced", {{"error", std::string(announced.message())}});
    }
    if (reason == not_ready_reason_) return;
    not_ready_reason_ = reason;
    if (reason.empty()) return LogInfo("ready again");
    LogError("not ready", {{"reason", reason}});
  }

  // Reports the server as not ready, but keeps serving until load balancers have noticed.
  void AnnounceEnd() {
    service_.Stopping();
    state_.SetLeaving();
    listeners_.UpdateHealth();
    if (state_.model() != nullptr) absl::SleepFor(absl::Seconds(options_.drain_delay));
  }

  void Drain(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    end_watch_->set_waits_for("the listeners' watch");
    end_watch_->Start(timeout + kEndGrace);
    listeners_.StopWatch();
    state_.SetDraining();
    listeners_.UpdateHealth();
    if (const auto model = state_.model()) {
      model->engine->Drain(deadline);
      const EngineStats stats = model->engine->stats();
      end_watch_->set_waits_for(
          stats.num_running + stats.num_waiting > 0 ? kEngineStep : "calls that are not answered");
    }
    listeners_.Shutdown(std::max(deadline, absl::Now() + kAnswerGrace));
    EndLoading();
    // The engine of a model that could not be served ends only after its step.
    if (load_failure_code_ != 0) end_watch_->set_waits_for(kEngineStep);
    if (trace_) WriteTrace();
    LogInfo("stopped");
  }

  void EndLoading() {
    // The thread of a model that is served has only the ready file left to write.
    if (load_ended_ || state_.model() != nullptr) return loader_.join();
    loader_.detach();  // it cannot be interrupted and ends with the process (LeaveProcess)
  }

  void WriteTrace() {
    if (const absl::Status written = trace_->WriteTo(options_.trace); !written.ok())
      LogError("the trace was not written", {{"error", std::string(written.message())}});
    if (trace_->num_lost() > 0)
      LogWarning("the trace was full", {{"events_left_out", trace_->num_lost()}});
  }

  const TeacherOptions options_;
  EndWatch* const end_watch_;
  const ModelLoader load_;
  std::unique_ptr<AccessLog> access_log_;  // null if there is none
  std::optional<RequestTrace> trace_;
  ServerMetrics metrics_;  // outlives the engine, which the state holds
  ServingState state_;
  PolicyUpdates policy_;  // used if the weights are replaced
  // The loading thread uses it before load_ended_, the main thread after.
  CanaryRunner canary_;
  TeacherListeners listeners_;
  std::atomic<bool> load_ended_{false};
  std::atomic<int> load_failure_code_{0};
  ServiceManager service_;
  std::thread loader_;
  bool is_announced_ = false;     // AnnounceReady has run
  std::string not_ready_reason_;  // empty if the server is ready
};

}  // namespace

int RunTeacher(const TeacherOptions& options, const ModelLoader& load, std::ostream& out) {
  EndWatch end_watch;
  return std::make_shared<TeacherApp>(options, load, &end_watch)->Run(out);
}

int ExitCodeOfLoad(const absl::Status& status) {
  if (IsDeviceFailure(status)) return kExitDevice;
  if (absl::IsUnavailable(status)) return kExitUnavailable;
  if (absl::IsInternal(status) || absl::IsUnknown(status)) return kExitInternal;
  if (absl::IsResourceExhausted(status)) return kExitOutOfMemory;
  return status.ok() ? kExitOk : kExitData;
}

}  // namespace taopd
