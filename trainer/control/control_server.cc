#include "trainer/control/control_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <mutex>

#include "trainer/control/control_service.h"
#include "trainer/control/status_page.h"

namespace taopd {
namespace {

// For an answer that is on its way when the run ends, such as that of Stop itself.
constexpr std::chrono::seconds kShutdownGrace{1};
constexpr int kMaxStreamsPerConnection = 300;
constexpr int kMaxMessageBytes = 64 << 10;  // requests are empty

class GrpcAndHttpServer final : public ControlServer {
 public:
  GrpcAndHttpServer(RunState* state, const std::string& token) : service_(state, token) {}

  ~GrpcAndHttpServer() override {
    if (server_ == nullptr) return;
    server_->GetHealthCheckService()->SetServingStatus(false);
    server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  }

  absl::Status StartGrpc(const std::string& host, int64_t port) {
    // Both are settings of the process, taken by the servers that are built from then on.
    static std::once_flag once;
    std::call_once(once, [] {
      grpc::EnableDefaultHealthCheckService(true);
      grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    });
    const bool is_ipv6 = host.find(':') != std::string::npos;
    const std::string address = is_ipv6 ? Concat("[", host, "]:", port) : Concat(host, ":", port);
    grpc::ServerBuilder builder;
    // Otherwise a second trainer on the port would start and take a share of the calls.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &grpc_port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || grpc_port_ == 0) {
      server_.reset();
      return Unavailable("cannot listen on ", address,
                         " for gRPC: the port is in use, or the host has no such address");
    }
    server_->GetHealthCheckService()->SetServingStatus(v1::Trainer::service_full_name(), true);
    return absl::OkStatus();
  }

  absl::Status StartHttp(const ControlServerOptions& options, RunState* state, ControlPages pages) {
    TAOPD_ASSIGN_OR_RETURN(pages_, StatusPages::Start(options, state, std::move(pages)));
    return absl::OkStatus();
  }

  int http_port() const override { return pages_->port(); }
  int grpc_port() const override { return grpc_port_; }

 private:
  ControlService service_;
  std::unique_ptr<grpc::Server> server_;
  int grpc_port_ = 0;
  std::unique_ptr<StatusPages> pages_;
};

absl::Status CheckPort(const char* name, int64_t port) {
  if (port >= 0 && port <= 65535) return absl::OkStatus();
  return InvalidArgument(name, " ", port, " is outside [0, 65535]");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(
    const ControlServerOptions& options, RunState* state, ControlPages pages) {
  TAOPD_RETURN_IF_ERROR(CheckPort("http_port", options.http_port));
  TAOPD_RETURN_IF_ERROR(CheckPort("grpc_port", options.grpc_port));
  if (options.host.empty()) return InvalidArgument("host is empty");
  auto server = std::make_unique<GrpcAndHttpServer>(state, options.token);
  TAOPD_RETURN_IF_ERROR(server->StartGrpc(options.host, options.grpc_port));
  TAOPD_RETURN_IF_ERROR(server->StartHttp(options, state, std::move(pages)));
  return server;
}

}  // namespace taopd
