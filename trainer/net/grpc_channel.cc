#include "trainer/net/grpc_channel.h"

#include <algorithm>
#include <chrono>
#include <tuple>

#include "common/io/file.h"
#include "common/wire/teacher_protocol.h"

namespace taopd {
namespace {

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(bool use_tls, const TlsPem& tls) {
  if (!use_tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = tls.ca;  // if empty, the system's list
  ssl.pem_cert_chain = tls.cert;
  ssl.pem_private_key = tls.key;
  return grpc::SslCredentials(ssl);
}

}  // namespace

absl::StatusOr<TlsPem> ReadTlsPem(const ClientCredentials& credentials) {
  TlsPem tls;
  for (const auto& [name, path, text] :
       {std::tuple("tls_ca_file", &credentials.tls_ca_file, &tls.ca),
        std::tuple("tls_cert_file", &credentials.tls_cert_file, &tls.cert),
        std::tuple("tls_key_file", &credentials.tls_key_file, &tls.key)}) {
    if (path->empty()) continue;
    auto content = ReadFileToString(*path, int64_t{16} << 20);
    if (!content.ok()) return InvalidArgument(name, ": ", content.status().message());
    *text = *std::move(content);
  }
  return tls;
}

std::shared_ptr<grpc::Channel> MakeGrpcChannel(const std::string& target,
                                               const GrpcChannelOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  // All addresses of a name are used in turn, and new ones are found when a connection ends.
  arguments.SetLoadBalancingPolicyName("round_robin");
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // retry_policy.h decides about retries
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Pings detect a peer that hangs without closing the connection.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  // The channel reconnects about as often as probes request it.
  const int64_t initial_ms =
      std::max<int64_t>(1, absl::ToInt64Milliseconds(options.initial_backoff));
  const int64_t max_ms =
      std::max(initial_ms, std::min<int64_t>(5000, absl::ToInt64Milliseconds(options.max_backoff)));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(initial_ms));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);  // limit of one attempt to connect
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(max_ms));
  return grpc::CreateCustomChannel(target, MakeCredentials(options.tls, options.pem), arguments);
}

void PrepareGrpcCall(const std::string& api_key, absl::Duration timeout,
                     grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  if (!api_key.empty()) context->AddMetadata("authorization", "Bearer " + api_key);
}

absl::Status ToAbsl(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace taopd
