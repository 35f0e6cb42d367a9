#include "server/grpc/grpc_server.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/stubs/logging.h>
#include <grpc/grpc.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/server_credentials.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/wire/teacher_protocol.h"
#include "proto/grpc/reflection_v1.grpc.pb.h"
#include "proto/grpc/reflection_v1alpha.grpc.pb.h"
#include "server/grpc/guard/grpc_guard.h"
#include "server/grpc/policy_service.h"
#include "server/grpc/reflection.h"
#include "server/grpc/teacher/teacher_service.h"
#include "server/grpc/vllm/engine_service.h"
#include "server/grpc/vllm/inference_service.h"
#include "server/net/listener.h"

namespace taopd {
namespace {

constexpr char kServiceName[] = "taopd.v1.Teacher";
constexpr char kLivenessName[] = "liveness";
constexpr char kHealthPath[] = "/grpc.health.v1.Health/";
constexpr char kTeacherPath[] = "/taopd.v1.Teacher/";
constexpr char kReflectionPath[] = "/grpc.reflection.";
constexpr int kHandshakeTimeoutMs = 20'000;
constexpr size_t kMaxBufferBytes = size_t{2} << 30;  // for all connections together

// protobuf writes a line on stderr for every string of a message that is not UTF-8. A client could
// fill a disk with them; the status of the call tells the sender.
void LogProtobufMessage(google::protobuf::LogLevel, const char* file, int line,
                        const std::string& message) {
  LogDebug("protobuf", {{"at", absl::StrCat(file, ":", line)}, {"message", message}});
}

// Returns the name under which the method's handler records its calls. Clients may send any path,
// but the labels must be a fixed set.
std::string MethodLabel(const std::string& path) {
  std::string name = path.substr(std::min<size_t>(path.size(), 1));
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  const auto* method = pool->FindMethodByName(name);
  if (method == nullptr ||
      path != absl::StrCat("/", method->service()->full_name(), "/", method->name()))
    return "grpc/unknown";
  if (path.starts_with(kReflectionPath)) return "grpc/Reflection";
  return "grpc/" + path.substr(path.starts_with(kTeacherPath) ? sizeof(kTeacherPath) - 1 : 1);
}

// Refuses calls that show no key at the end of their headers, before gRPC reads their message: a
// client without a key cannot make the server hold one.
class KeyCheck final : public grpc::AuthMetadataProcessor {
 public:
  KeyCheck(const ApiKeys* keys, ServerMetrics* metrics) : keys_(keys), metrics_(metrics) {}

  // The check takes microseconds: gRPC's thread may do it.
  bool IsBlocking() const override { return false; }
  // Returns UNAUTHENTICATED, recorded under the call's method, unless the call shows one of the
  // keys or is for the health service. The client's address is not known here.
  grpc::Status Process(const InputMetadata& headers, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    const std::string path = OnlyValueOf(headers, ":path");
    if (path.starts_with(kHealthPath) || keys_->Accepts(OnlyValueOf(headers, "authorization"))) {
      return grpc::Status::OK;
    }
    metrics_->RecordRequest(MethodLabel(path), "UNAUTHENTICATED", absl::ZeroDuration());
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, "Unauthorized");
  }

 private:
  const ApiKeys* const keys_;
  ServerMetrics* const metrics_;
};

// gRPC speaks with the guard alone, over pairs of sockets.
std::shared_ptr<grpc::ServerCredentials> Credentials(const ApiKeys* keys, ServerMetrics* metrics) {
  auto credentials = grpc::experimental::LocalServerCredentials(UDS);
  if (keys != nullptr && keys->required()) {
    credentials->SetAuthMetadataProcessor(std::make_shared<KeyCheck>(keys, metrics));
  }
  return credentials;
}

int ToMilliseconds(absl::Duration duration) {
  // INT_MAX means never.
  return static_cast<int>(
      std::min<int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<int>::max()));
}

void LimitMessages(grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(kMaxMessageBytes));
  builder->SetMaxSendMessageSize(static_cast<int>(kMaxMessageBytes));
  builder->SetResourceQuota(grpc::ResourceQuota("taopd-teacher").Resize(kMaxBufferBytes));
  // A small message could inflate to any size.
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  for (const auto algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder->SetCompressionAlgorithmSupportStatus(algorithm, false);
  }
}

void LimitConnections(const GrpcConnectionLimits& limits, grpc::ServerBuilder* builder) {
  // A connection that never speaks HTTP/2 must not stay open.
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, ToMilliseconds(limits.max_idle));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, ToMilliseconds(limits.max_age));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                              ToMilliseconds(limits.max_age_grace));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams);
  // Clients may send keepalive pings while they wait for a long score.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // Before a message is read, gRPC lets the client send one window of bytes. Its probe of the
  // bandwidth would grow that window to the size of many messages.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES,
                              FrameGuard::kInitialWindowBytes);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
}

// Returns the services that reflection lists. The health service has no descriptor here, so a tool
// that was told of it could not describe it.
std::vector<std::string> ServiceNames(bool has_policy) {
  std::vector<std::string> names = {
      v1::Teacher::service_full_name(),
      vllm::Inference::service_full_name(),
      vllm::Control::service_full_name(),
      vllm::grpc::engine::VllmEngine::service_full_name(),
      grpc::reflection::v1::ServerReflection::service_full_name(),
      grpc::reflection::v1alpha::ServerReflection::service_full_name()};
  if (has_policy) names.push_back(v1::Policy::service_full_name());
  return names;
}

class GrpcServerImpl final : public GrpcServer {
 public:
  GrpcServerImpl(ServingState* state, ServerMetrics* metrics, const GrpcServerOptions& options)
      : state_(state), metrics_(metrics), options_(options) {}
  ~GrpcServerImpl() override {
    if (server_ != nullptr) Shutdown(absl::Now());
  }

  absl::Status Start(const std::string& host, int port) {
    [[maybe_unused]] static const auto before = google::protobuf::SetLogHandler(LogProtobufMessage);
    TAOPD_RETURN_IF_ERROR(tls_.Reload());
    grpc::ServerBuilder builder;
    TAOPD_ASSIGN_OR_RETURN(Listener listener, Annotate(Listener::Open(host, port), "gRPC"));
    port_ = listener.port();
    auto connections = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        Credentials(options_.keys, metrics_));
    RegisterServices(&builder);
    LimitMessages(&builder);
    LimitConnections(options_.limits, &builder);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return Unavailable("gRPC cannot start on ", host, " and port ", port);
    guard_ = std::make_unique<GrpcGuard>(
        std::move(listener), std::move(connections),
        GrpcGuard::Options{
            .limits = {options_.limits.max_concurrent_streams, kMaxMessageBytes},
            .tls = options_.tls.enabled() ? &tls_ : nullptr,
            .budget = &state_->message_budget(),
            .proxies = &state_->trusted_proxies(),
            .on_failure = options_.on_failure,
            .on_refusal = [this](const std::string& address, const absl::Status& why) {
              metrics_->RecordRequest("grpc/guard", absl::StatusCodeToString(why.code()),
                                      absl::ZeroDuration(), address);
            }});
    absl::MutexLock lock(&mutex_);
    SetHealth(false, false);
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  // Without the lock, a thread could replace a newer state by one that it read earlier, such as
  // "ready" while the server drains.
  void UpdateHealth() override {
    absl::MutexLock lock(&mutex_);
    if (server_ != nullptr) SetHealth(state_->Health().ok(), state_->Ready().ok());
  }

  void Shutdown(absl::Time deadline) override {
    {
      absl::MutexLock lock(&mutex_);
      SetHealth(false, false);
    }
    teacher_.DrainStreams();
    teacher_.tracker().WaitUntilIdle(deadline);
    guard_->StopAccepting();
    // Only calls past the deadline are left, and health watches, which never end by themselves.
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    // Calls that came after the tracker was idle have also ended, because gRPC waits for them.
    // Their locks are taken again before the services are destroyed.
    teacher_.tracker().WaitUntilIdle(absl::InfiniteFuture());
    guard_.reset();
    absl::MutexLock lock(&mutex_);
    server_.reset();
  }

 private:
  void SetHealth(bool healthy, bool ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", ready);
    health->SetServingStatus(kServiceName, ready);
    health->SetServingStatus(kLivenessName, healthy);
  }

  void RegisterServices(grpc::ServerBuilder* builder) {
    builder->RegisterService(&teacher_);
    builder->RegisterService(&vllm_inference_);
    builder->RegisterService(&vllm_control_);
    builder->RegisterService(&vllm_engine_);
    if (options_.policy != nullptr) builder->RegisterService(&policy_);
    if (options_.reflection) {
      builder->RegisterService(&reflection_);
      builder->RegisterService(&reflection_v1alpha_);
    }
  }

  ServingState* const state_;
  ServerMetrics* const metrics_;
  const GrpcServerOptions options_;
  TeacherService teacher_{state_, metrics_, options_.keys};
  RunRegistry runs_;
  VllmInferenceService vllm_inference_{teacher_.services(), &runs_};
  VllmControlService vllm_control_{teacher_.services(), &runs_};
  VllmEngineService vllm_engine_{teacher_.services(), &runs_};
  PolicyService policy_{teacher_.services(), options_.policy};
  const std::vector<std::string> names_ = ServiceNames(options_.policy != nullptr);
  ReflectionService<grpc::reflection::v1::ServerReflection> reflection_{teacher_.services(),
                                                                        names_};
  ReflectionService<grpc::reflection::v1alpha::ServerReflection> reflection_v1alpha_{
      teacher_.services(), names_};
  TlsFiles tls_{options_.tls, TlsFiles::Protocol::kHttp2};
  int port_ = 0;
  absl::Mutex mutex_;  // any thread may call UpdateHealth while Shutdown ends the server
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<GrpcGuard> guard_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Listen(const std::string& host, int port,
                                                               ServingState* state,
                                                               ServerMetrics* metrics,
                                                               const GrpcServerOptions& options) {
  // Applies to the servers built from here on and may be repeated.
  grpc::EnableDefaultHealthCheckService(true);
  // gRPC stays initialized until the process ends. Otherwise the end of its last server waits for a
  // thread that looks at connections and may sleep for ten seconds.
  [[maybe_unused]] static const bool is_initialized = [] {
    grpc_init();
    return true;
  }();
  auto server = std::make_unique<GrpcServerImpl>(state, metrics, options);
  TAOPD_RETURN_IF_ERROR(server->Start(host, port));
  return server;
}

}  // namespace taopd
