// The end of a run on a full disk: a write is retried until it succeeds, and meanwhile the weights
// stay in memory.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "common/dist/process_group.h"
#include "trainer/control/run_state.h"
#include "trainer/run/checkpointed_run.h"
#include "trainer/run/exit_status.h"

namespace taopd {

// Calls `attempt`, a collective with the same result on all ranks, until it succeeds. After a
// failure the phase is kWaitingForStorage, the log says what to do, and the next attempt follows
// about a second later. Returns kExitStorage if a stop is requested on any rank while it waits: the
// message names `what`, such as "the checkpoint of step 20", and the newest step that is saved.
absl::Status UntilStored(const std::string& what, CheckpointedRun* run, RunState* state,
                         const std::function<absl::Status()>& attempt);

}  // namespace taopd
