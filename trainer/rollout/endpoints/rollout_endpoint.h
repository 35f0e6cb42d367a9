// Endpoints of servers of rollouts as users write them: a scheme of rollout_protocols.h, which says
// what the server speaks, and an address.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "trainer/rollout/endpoints/rollout_protocols.h"

namespace taopd {

// Makes the workers of rollout.endpoints, and does not connect. The other options are those of
// `common`. Returns INVALID_ARGUMENT, naming the endpoint, if it is malformed or comes twice, and
// if TLS files are given and no endpoint uses TLS; and the errors of CheckApiKey and
// MakeRolloutWorker.
absl::StatusOr<std::vector<std::unique_ptr<RolloutWorker>>> MakeRolloutWorkers(
    const std::vector<std::string>& endpoints, const RolloutWorkerOptions& common);

}  // namespace taopd
