// Connections to servers over gRPC.
#pragma once

#include <absl/time/time.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "trainer/grpc/tls_pem.h"

namespace taopd {

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

absl::Status ToAbsl(const grpc::Status& status);

}  // namespace taopd
