// The teacher's two listeners, HTTP and gRPC, with the keys and certificates that they ask for and
// show, and the watch that connects to both.
#pragma once

#include <atomic>
#include <iosfwd>
#include <memory>

#include "server/app/listener_watch.h"
#include "server/grpc/grpc_server.h"
#include "server/http/http_server.h"
#include "server/options/teacher_options.h"

namespace taopd {

// One thread calls LoadSecrets, Listen, StopWatch and Shutdown, in this order; it may call
// LoadSecrets again at any time. Once Listen has returned OK, any thread may call the other
// functions.
class TeacherListeners {
 public:
  // `options` and `state` must outlive the object.
  TeacherListeners(const TeacherOptions& options, ServingState* state)
      : options_(options),
        state_(state),
        keys_(options.api_key, options.api_key_file),
        tls_({options.ssl_certfile, options.ssl_keyfile, options.ssl_ca_certs}) {}

  // Reads the files of keys and certificates. A later call reads them again; a file that cannot be
  // used leaves what it replaces as it was.
  absl::Status LoadSecrets();
  // Starts to listen, names the ports in one line on `out`, and starts the watch, which tells the
  // state whether the listeners answer. `metrics` and `policy`, which is null if no weights are
  // replaced, must outlive the object. The process must ignore SIGPIPE.
  absl::Status Listen(ServerMetrics* metrics, PolicyUpdates* policy, std::ostream& out);
  int http_port() const { return http_->port(); }
  int grpc_port() const { return grpc_->port(); }
  // Returns the name of a listener that can no longer accept connections, or null.
  const char* failed() const { return failed_; }
  // Makes gRPC's health service answer what the state says.
  void UpdateHealth() { grpc_->UpdateHealth(); }
  // May block, because a probe looks up the host's name.
  void StopWatch() { watch_.reset(); }
  // Waits until all answers have left or `deadline` has passed, then closes the listeners.
  void Shutdown(absl::Time deadline);

 private:
  const TeacherOptions& options_;
  ServingState* const state_;
  ApiKeys keys_;
  TlsFiles tls_;
  std::atomic<const char*> failed_{nullptr};  // the servers' threads set it
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<GrpcServer> grpc_;
  std::unique_ptr<ListenerWatch> watch_;
};

}  // namespace taopd
