// The protocols that a server of rollouts may speak, one row each. Parsing of endpoints, messages
// and workers follow from the row.
#pragma once

#include <absl/time/time.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/wire/client_credentials.h"
#include "trainer/config/rollout_endpoints_config.h"
#include "trainer/net/server_address.h"
#include "trainer/rollout/endpoints/rollout_worker.h"

namespace taopd {

struct RolloutWorkerOptions : ClientCredentials {
  ServerAddress server;
  std::string address;                         // as the user wrote it
  absl::Duration timeout = absl::Minutes(30);  // limit of one call
  int64_t max_in_flight = 64;                  // threads that call Generate concurrently
  WeightTransfer transfer = WeightTransfer::kDirectory;
  int cuda_device = -1;  // the trainer's GPU, for transfer kNccl; -1 if it has none
  OnUpdate on_update = OnUpdate::kFinish;
};

// Does not connect. Returns INVALID_ARGUMENT for an option that the protocol does not have, or a
// file that cannot be read.
using MakeRolloutWorker =
    absl::StatusOr<std::unique_ptr<RolloutWorker>> (*)(const RolloutWorkerOptions& options);

// taopd-teacher with --trainable: the services taopd.v1.Policy and taopd.v1.Teacher.
absl::StatusOr<std::unique_ptr<RolloutWorker>> MakeGrpcRolloutWorker(
    const RolloutWorkerOptions& options);
// vLLM: its routes of development mode change weights (vllm_rollout_worker.cc).
absl::StatusOr<std::unique_ptr<RolloutWorker>> MakeVllmRolloutWorker(
    const RolloutWorkerOptions& options);

struct RolloutProtocol {
  const char* scheme;
  const char* tls_scheme;
  const char* server;  // the server, in messages and help
  MakeRolloutWorker make;
};

inline constexpr RolloutProtocol kRolloutProtocols[] = {
    {"grpc", "grpcs", "taopd-teacher --trainable", &MakeGrpcRolloutWorker},
    {"vllm+http", "vllm+https", "vLLM", &MakeVllmRolloutWorker},
};

// Makes the workers of rollout.endpoints, and does not connect. `common` has the other options.
// Returns INVALID_ARGUMENT if an endpoint is malformed or is given twice, and the errors of
// CheckApiKey, CheckTlsUse and MakeRolloutWorker.
absl::StatusOr<std::vector<std::unique_ptr<RolloutWorker>>> MakeRolloutWorkers(
    const std::vector<std::string>& endpoints, const RolloutWorkerOptions& common);

}  // namespace taopd
