#include "server/grpc/grpc_server.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <utility>

#include "common/base/log.h"
#include "common/wire/teacher_protocol.h"
#include "server/grpc/teacher_service.h"
#include "server/grpc/vllm/inference_service.h"

namespace taopd {
namespace {

constexpr char kServiceName[] = "taopd.v1.Teacher";
constexpr char kLivenessName[] = "liveness";
constexpr int kMaxConcurrentStreams = 1024;          // of one connection
constexpr size_t kMaxBufferBytes = size_t{2} << 30;  // of all connections

// protobuf writes a line on stderr for every string of a message that is not UTF-8. A client could
// fill a disk with them; the sender of such a message is told by the status of its call.
void LogOfProtobuf(google::protobuf::LogLevel, const char* file, int line,
                   const std::string& message) {
  LogDebug("protobuf", {{"at", absl::StrCat(file, ":", line)}, {"message", message}});
}

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(ServingState* state, ServerMetrics* metrics)
      : service_(state, metrics),
        vllm_inference_(state, metrics, &service_.tracker(), &runs_),
        vllm_control_(state, &runs_) {}
  ~GrpcServerImpl() override {
    if (server_ != nullptr) Shutdown(absl::Now());
  }

  absl::Status Start(const std::string& host, int port) {
    [[maybe_unused]] static const auto before = google::protobuf::SetLogHandler(LogOfProtobuf);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(HostPort(host, port), grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    builder.RegisterService(&vllm_inference_);
    builder.RegisterService(&vllm_control_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
    builder.SetMaxSendMessageSize(static_cast<int>(kMaxMessageBytes));
    // Otherwise two servers could share one port, and each would get some of the connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxConcurrentStreams);
    // Clients may send keepalive pings while they wait for a long score.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetResourceQuota(grpc::ResourceQuota("taopd-teacher").Resize(kMaxBufferBytes));
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ == 0) {
      server_.reset();
      return Unavailable("grpc_port ", port, " on ", host,
                         " cannot be listened on (is it in use?)");
    }
    SetHealth(false, false);
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void SetHealth(bool healthy, bool ready) override {
    absl::MutexLock lock(&mutex_);
    if (server_ == nullptr) return;
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", ready);
    health->SetServingStatus(kServiceName, ready);
    health->SetServingStatus(kLivenessName, healthy);
  }

  void Shutdown(absl::Time deadline) override {
    SetHealth(false, false);
    service_.DrainStreams();
    service_.tracker().WaitUntilIdle(deadline);
    // What is left are calls past the deadline, and health watches, which never end by themselves.
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    absl::MutexLock lock(&mutex_);
    server_.reset();
  }

 private:
  TeacherService service_;
  RunRegistry runs_;
  VllmInferenceService vllm_inference_;
  VllmControlService vllm_control_;
  int port_ = 0;
  absl::Mutex mutex_;  // any thread may call SetHealth while Shutdown ends the server
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

std::string HostPort(const std::string& host, int port) {
  const bool is_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return is_ipv6 ? Concat("[", host, "]:", port) : Concat(host, ":", port);
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Listen(const std::string& host, int port,
                                                               ServingState* state,
                                                               ServerMetrics* metrics) {
  // Both apply to the servers built from here on and may be repeated.
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  auto server = std::make_unique<GrpcServerImpl>(state, metrics);
  TAOPD_RETURN_IF_ERROR(server->Start(host, port));
  return server;
}

}  // namespace taopd
