// The group of several ranks (process_group.h), over c10d of LibTorch.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/dist/process_group.h"

namespace taopd {

// Joins the group; see ProcessGroup::Connect. REQUIRES: rendezvous.world_size > 1.
absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectC10dGroup(const Rendezvous& rendezvous,
                                                               const ProcessGroupOptions& options);

}  // namespace taopd
