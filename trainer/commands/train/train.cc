// The subcommand train.
#include <unistd.h>

#include <iostream>

#include "common/base/log.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/setup/ranks.h"
#include "trainer/commands/train/training_run.h"

namespace taopd {

absl::Status RunTraining(TrainConfig config, const StartMode& mode, RunState* state) {
  std::unique_ptr<ProcessGroup> group;
  // Before the run begins (TrainingRun::SetUp) there is nothing to save, and it may wait long for
  // other ranks and for the teacher.
  // A dry run never begins.
  const auto end_at_once = [](ExitCode code) {
    LogInfo("stopped", {{"reason", "asked to stop before the run had begun: nothing has changed"}});
    std::cout.flush();
    _exit(code);
  };
  state->PassStopsOn(end_at_once);
  absl::Status failure = CatchExceptions([&]() -> absl::Status {
    TAOPD_RETURN_IF_ERROR(JoinRanks(&config, &group));
    // Whichever rank is asked to stop, all of them know.
    group->OnStop([state](int code) { state->RequestStop(static_cast<ExitCode>(code)); });
    state->PassStopsOn([end_at_once, ranks = group.get()](ExitCode code) {
      ranks->RequestStop(code);
      ranks->Leave();
      end_at_once(code);
    });
    if (mode.dry_run && !config.teacher.cache_only) config.teacher.cache_dir.clear();
    return TrainingRun(std::move(config), state, group.get()).Run(mode);
  });
  failure = PartRanks(group.get(), std::move(failure));
  state->PassStopsOn(nullptr);
  return failure;
}

}  // namespace taopd
