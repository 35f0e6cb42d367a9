// Refuses calls that show no key at the end of their headers, before gRPC reads their message: who
// has no key cannot make the server hold one.
#pragma once

#include <grpcpp/security/auth_metadata_processor.h>

#include "server/metrics/server_metrics.h"
#include "server/security/api_keys.h"

namespace taopd {

class KeyCheck final : public grpc::AuthMetadataProcessor {
 public:
  // Both must outlive the server.
  KeyCheck(const ApiKeys* keys, ServerMetrics* metrics) : keys_(keys), metrics_(metrics) {}

  // The check takes microseconds: gRPC's thread may do it.
  bool IsBlocking() const override { return false; }
  // UNAUTHENTICATED, recorded under the call's method, unless the call shows one of the keys or is
  // for the health service. The client's address is not known here.
  grpc::Status Process(const InputMetadata& headers, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override;

 private:
  const ApiKeys* const keys_;
  ServerMetrics* const metrics_;
};

}  // namespace taopd
