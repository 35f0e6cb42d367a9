// Accepts the connections of a gRPC server, which gRPC 1.51 itself would no longer do after it has
// once run out of file descriptors (CVE-2023-4785). Connections are closed at once while
// descriptors are scarce, so that HTTP has some left, and accepting goes on when there are more.
#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "server/net/listener.h"

namespace taopd {

class GrpcAcceptor {
 public:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  // Accepts on a thread of its own until it is destroyed, and hands each connection to
  // `connections`, whose server must be running. Destroy this object before the server is shut
  // down: gRPC does not close connections that come later.
  GrpcAcceptor(Listener listener, std::unique_ptr<Connections> connections);
  ~GrpcAcceptor();

 private:
  void Loop();
  // Takes all that wait. False if accepting failed for now.
  bool AcceptAll();

  Listener listener_;
  const std::unique_ptr<Connections> connections_;
  int wake_ = -1;
  std::thread thread_;
};

}  // namespace taopd
