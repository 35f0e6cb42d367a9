// Lets the ranks of a distillation run join, agree and leave.
#pragma once

#include <memory>

#include "common/dist/process_group.h"
#include "common/metrics/sink.h"
#include "trainer/config/train_config.h"
#include "trainer/run/exit_status.h"

namespace taopd {

// Joins the group that the environment describes (rendezvous.h) and checks that all ranks have the
// same configuration. With several ranks, trainer.device auto becomes the CUDA device of the rank
// on its machine, if there is one.
absl::Status JoinRanks(TrainConfig* config, std::unique_ptr<ProcessGroup>* group);

// All ranks call it, each with its own result. If any rank has failed, returns on all ranks the
// failure of the first one that has, with the largest exit code of any.
absl::Status AgreeOnFailure(ProcessGroup* group, const absl::Status& mine);

// Returns rank 0's metrics on all ranks.
absl::StatusOr<Metrics> MetricsOfRoot(ProcessGroup* group, const Metrics& metrics);

// Ends this rank. After a success or a stop, waits for the other ranks to end as well; after any
// other failure, ends them too. Returns the failure, or that of another rank.
absl::Status LeaveRanks(ProcessGroup* group, absl::Status failure);

}  // namespace taopd
