#include "server/app/listeners.h"

#include <ostream>

#include "server/net/listener.h"

namespace taopd {
namespace {

constexpr char kHttpHello[] = "GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

absl::Duration LimitOf(double seconds) {
  return seconds == 0.0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

}  // namespace

absl::Status TeacherListeners::LoadSecrets() {
  absl::Status loaded = keys_.Reload();
  // A bad file of keys must not prevent the renewal of certificates that are about to expire.
  if (const absl::Status certificates = tls_.Reload(); !certificates.ok()) {
    if (loaded.ok()) return certificates;
    loaded = Annotate(loaded, std::string(certificates.message()));
  }
  return loaded;
}

absl::Status TeacherListeners::Listen(ServerMetrics* metrics, PolicyUpdates* policy,
                                      std::ostream& out) {
  HttpServerOptions http;
  http.health_port = static_cast<int>(options_.health_port);
  http.tls = &tls_;
  http.keys = &keys_;
  http.limits.max_connections = static_cast<int>(options_.max_http_connections);
  http.limits.max_connections_per_client =
      static_cast<int>(options_.max_http_connections_per_client);
  const GrpcServerOptions grpc = {
      .tls = tls_.paths(),
      .keys = &keys_,
      .reflection = options_.grpc_reflection,
      .limits = {.max_idle = LimitOf(options_.grpc_max_connection_idle),
                 .max_age = LimitOf(options_.grpc_max_connection_age),
                 .max_age_grace = LimitOf(options_.grpc_max_connection_age_grace),
                 .max_concurrent_streams = static_cast<int>(options_.grpc_max_concurrent_streams)},
      .policy = policy,
      .on_failure = [this] { failed_ = "gRPC"; }};
  const std::string& host = options_.host;
  TAOPD_ASSIGN_OR_RETURN(http_, HttpServer::Listen(
                                    host, static_cast<int>(options_.port), state_, metrics,
                                    [this] { failed_ = "HTTP"; }, http));
  TAOPD_ASSIGN_OR_RETURN(
      grpc_, GrpcServer::Listen(host, static_cast<int>(options_.grpc_port), state_, metrics, grpc));
  out << "listening http=" << HostPort(host, http_port())
      << " grpc=" << HostPort(host, grpc_port());
  if (http_->health_port() != 0) out << " health=" << HostPort(host, http_->health_port());
  out << std::endl;
  if (options_.self_probe_interval == 0) return absl::OkStatus();
  watch_ = std::make_unique<ListenerWatch>(
      std::vector<WatchedListener>{{"HTTP", host, http_port(), kHttpHello},
                                   {"gRPC", host, grpc_port(), Http2Hello()}},
      ListenerWatch::Options{.interval = absl::Seconds(options_.self_probe_interval)},
      [this](const absl::Status& verdict) { state_->SetListeners(verdict); });
  return absl::OkStatus();
}

void TeacherListeners::Shutdown(absl::Time deadline) {
  grpc_->Shutdown(deadline);
  http_->Shutdown(deadline);
}

}  // namespace taopd
