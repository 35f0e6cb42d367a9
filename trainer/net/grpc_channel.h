// Connections to servers over gRPC, and the certificates with which a client speaks TLS.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/wire/client_credentials.h"

namespace taopd {

// In PEM format; empty if not given.
struct TlsPem {
  std::string ca;    // the roots of the servers' certificates; if empty, the system's list
  std::string cert;  // of this client
  std::string key;
};

// Reads the files; an empty path stands for no file. Returns INVALID_ARGUMENT, naming the setting
// (tls_ca_file, tls_cert_file, tls_key_file), if one cannot be read.
absl::StatusOr<TlsPem> ReadTlsPem(const ClientCredentials& credentials);

struct GrpcChannelOptions {
  bool tls = false;
  TlsPem pem;  // used with tls
  int64_t max_message_bytes = 0;
  // Pauses between attempts to connect.
  absl::Duration initial_backoff, max_backoff;
};

// `target` is "dns:///host:port", which uses every address of the name. Calls are not retried.
// Proxies of the environment are ignored, because servers are expected in the same network.
std::shared_ptr<grpc::Channel> MakeGrpcChannel(const std::string& target,
                                               const GrpcChannelOptions& options);

// Gives a call its time limit and the API key, unless that is empty.
void PrepareGrpcCall(const std::string& api_key, absl::Duration timeout,
                     grpc::ClientContext* context);

absl::Status ToAbsl(const grpc::Status& status);

}  // namespace taopd
