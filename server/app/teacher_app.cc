#include "server/app/teacher_app.h"

#include <absl/time/clock.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <nlohmann/json.hpp>
#include <ostream>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/io/file.h"
#include "server/app/exit_code_of.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/metrics/server_metrics.h"

namespace taopd {
namespace {

constexpr timespec kHealthInterval = {.tv_sec = 0, .tv_nsec = 500'000'000};

// gRPC 1.51 stops accepting for good when the process runs out of file descriptors (CVE-2023-4785).
void RaiseFileDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

class TeacherApp {
 public:
  TeacherApp(const TeacherOptions& options, ModelLoader load)
      : options_(options),
        load_(std::move(load)),
        state_(Clock::Real(), absl::Seconds(options.stall_timeout),
               options.max_message_memory_bytes),
        keys_(options.api_key, options.api_key_file),
        tls_({options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs}) {}

  int Run(std::ostream& out) {
    sigset_t signals = BlockSignals();
    RaiseFileDescriptorLimit();
    if (const absl::Status secrets = LoadSecrets(); !secrets.ok()) {
      LogError("cannot listen", {{"error", std::string(secrets.message())}});
      return kExitUsage;
    }
    if (const absl::Status listening = Listen(out); !listening.ok()) {
      LogError("cannot listen", {{"error", std::string(listening.message())}});
      return kExitUnavailable;
    }
    loader_ = std::thread([this] { Load(); });
    const int exit_code = WaitForEnd(signals);
    // From here on a second signal to end does what it does by default.
    sigdelset(&signals, SIGHUP);
    ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    Drain();
    return exit_code;
  }

  // The loading thread still runs and uses this object.
  bool loader_left_behind() const { return loader_left_behind_; }

 private:
  sigset_t BlockSignals() const {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    // Without anything to read again, SIGHUP ends the program as it ends others.
    if (!options_.api_key_file.empty() || tls_.paths().enabled()) sigaddset(&signals, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);  // inherited by every thread started later
    ::signal(SIGPIPE, SIG_IGN);
    return signals;
  }

  absl::Status LoadSecrets() {
    TAOPD_RETURN_IF_ERROR(keys_.Reload());
    return tls_.Reload();
  }

  absl::Status Listen(std::ostream& out) {
    HttpServerOptions http;
    http.health_port = static_cast<int>(options_.health_port);
    http.limits.max_connections = static_cast<int>(options_.max_http_connections);
    http.limits.max_connections_per_client =
        static_cast<int>(options_.max_http_connections_per_client);
    http.limits.max_client_memory_share = options_.max_client_memory_share;
    http.tls = &tls_;
    http.keys = &keys_;
    TAOPD_ASSIGN_OR_RETURN(http_, HttpServer::Listen(
                                      options_.host, static_cast<int>(options_.port), &state_,
                                      &metrics_, [this] { http_failed_ = true; }, http));
    TAOPD_ASSIGN_OR_RETURN(
        grpc_, GrpcServer::Listen(options_.host, static_cast<int>(options_.grpc_port), &state_,
                                  &metrics_, {tls_.paths(), &keys_}));
    out << "listening http=" << HostPort(options_.host, http_->port())
        << " grpc=" << HostPort(options_.host, grpc_->port());
    if (http_->health_port() != 0) {
      out << " health=" << HostPort(options_.host, http_->health_port());
    }
    out << std::endl;
    return absl::OkStatus();
  }

  // On the loading thread. Whatever a library throws ends here.
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
      load_failure_code_ = ExitCodeOf(status);
    }
    load_ended_ = true;
  }

  absl::Status LoadOrFail() {
    const absl::Time begun_at = absl::Now();
    TAOPD_ASSIGN_OR_RETURN(std::shared_ptr<const ServedModel> model, load_());
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
    state_.SetReady(std::move(model));
    grpc_->SetServing(true);
    if (options_.ready_file.empty()) return absl::OkStatus();
    const nlohmann::ordered_json ready = {
        {"http_port", http_->port()}, {"grpc_port", grpc_->port()}, {"pid", ::getpid()}};
    if (const absl::Status written = WriteFileAtomically(options_.ready_file, ready.dump() + "\n");
        !written.ok()) {
      return Internal("ready_file: ", std::string(written.message()));
    }
    return absl::OkStatus();
  }

  // Until a signal, a failure to load, or the loss of a listener; meanwhile tells gRPC's health
  // service what /health says.
  int WaitForEnd(const sigset_t& signals) {
    bool was_healthy = false;
    for (;;) {
      const int signal_number = ::sigtimedwait(&signals, nullptr, &kHealthInterval);
      if (signal_number == SIGHUP) {
        const absl::Status reloaded = LoadSecrets();
        if (reloaded.ok()) {
          LogInfo("keys and certificates read again");
        } else {
          LogError("keys or certificates stay as they were",
                   {{"error", std::string(reloaded.message())}});
        }
      } else if (signal_number > 0) {
        LogInfo("draining", {{"signal", signal_number}, {"timeout_s", options_.shutdown_timeout}});
        return kExitOk;
      }
      if (load_failure_code_ != 0) return load_failure_code_;
      if (http_failed_) {
        LogError("the HTTP listener can no longer accept connections");
        return kExitInternal;
      }
      const absl::Status health = state_.Health();
      if (load_ended_ && health.ok() != was_healthy) {
        was_healthy = health.ok();
        grpc_->SetServing(was_healthy);
        if (!was_healthy) LogError("not healthy", {{"reason", std::string(health.message())}});
      }
    }
  }

  void Drain() {
    const absl::Time deadline = absl::Now() + absl::Seconds(options_.shutdown_timeout);
    grpc_->SetServing(false);
    state_.SetDraining();
    if (const auto model = state_.model()) model->engine->Drain(deadline);
    grpc_->Shutdown(deadline);
    http_->Shutdown(deadline);
    // A model that is served is loaded: what is left of that thread is the ready file.
    if (load_ended_ || state_.model() != nullptr) {
      loader_.join();
    } else {
      loader_.detach();  // cannot be interrupted; the process ends under it (LeaveProcess)
      loader_left_behind_ = true;
    }
    LogInfo("stopped");
  }

  const TeacherOptions options_;
  const ModelLoader load_;
  ServingState state_;
  ServerMetrics metrics_;
  ApiKeys keys_;
  TlsFiles tls_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::atomic<bool> http_failed_{false};
  std::atomic<bool> load_ended_{false};
  std::atomic<int> load_failure_code_{0};
  std::thread loader_;
  bool loader_left_behind_ = false;
};

}  // namespace

int RunTeacher(const TeacherOptions& options, const ModelLoader& load, std::ostream& out) {
  auto app = std::make_unique<TeacherApp>(options, load);
  const int exit_code = app->Run(out);
  if (app->loader_left_behind()) app.release();
  return exit_code;
}

void LeaveProcess(int exit_code) {
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

}  // namespace taopd
