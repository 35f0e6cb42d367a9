#include "trainer/commands/until_stored.h"

#include "common/base/log.h"

namespace taopd {
namespace {

constexpr absl::Duration kPause = absl::Seconds(1);

}  // namespace

absl::Status UntilStored(const std::string& what, CheckpointedRun* run, RunState* state,
                         const std::function<absl::Status()>& attempt) {
  absl::Status stored = attempt();
  if (stored.ok()) return absl::OkStatus();
  ProcessGroup& group = run->group();
  const int64_t saved_step = run->checkpoints().newest_saved_step();
  const std::string saved = saved_step < 0
                                ? std::string("nothing is saved")
                                : Concat("nothing newer than step ", saved_step, " is saved");
  const TrainerPhase phase = state->status().phase;
  state->Update([&](RunStatus& status) {
    status.phase = TrainerPhase::kWaitingForStorage;
    status.storage_problem = std::string(stored.message());
  });
  if (group.is_root()) {
    LogError(
        "the run waits until it can write its state: make room, and it continues by itself; "
        "POST /stop or a signal ends it without writing",
        {{"dir", run->run_dir()}, {"what", what}, {"saved", saved}, {"error", stored}});
  }
  while (true) {
    TAOPD_ASSIGN_OR_RETURN(
        const int64_t gives_up,
        WithExitCode(kExitUnavailable, group.AgreeOnLargest(state->WaitToGiveUp(kPause) ? 1 : 0)));
    if (gives_up > 0) {
      return WithExitCode(kExitStorage, Annotate(stored, Concat(what, " is given up; ", saved)));
    }
    stored = attempt();
    if (!stored.ok()) continue;
    state->Update([&](RunStatus& status) {
      status.phase = phase;
      status.storage_problem.clear();
    });
    if (group.is_root()) LogInfo("written after a wait for disk space", {{"what", what}});
    return absl::OkStatus();
  }
}

}  // namespace taopd
