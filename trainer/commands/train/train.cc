// The subcommand train: distills the teacher into the student.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "common/base/log.h"
#include "trainer/cli/config_flags.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/catch_exceptions.h"
#include "trainer/loop/training_run.h"
#include "trainer/setup/ranks.h"

namespace taopd {
namespace {

// `control` carries requests from other threads to the training loop and its status back.
absl::Status RunTraining(TrainConfig config, const StartMode& mode, RunControl* control) {
  std::unique_ptr<ProcessGroup> group;
  // A stop request before the run begins (TrainingRun::SetUp) ends the process immediately: nothing
  // has to be saved, and the run may wait long for other ranks and for the teacher. A dry run never
  // begins.
  const auto end_at_once = [](ExitCode code) {
    LogInfo("stopped", {{"reason", "asked to stop before the run began; nothing has changed"}});
    std::cout.flush();
    _exit(code);
  };
  control->PassStopsOn(end_at_once);
  absl::Status failure = CatchExceptions([&]() -> absl::Status {
    TAOPD_RETURN_IF_ERROR(JoinRanks(&config, &group));
    // A stop request to one rank reaches all of them.
    group->OnStop([control](int code) { control->RequestStop(static_cast<ExitCode>(code)); });
    control->PassStopsOn([end_at_once, ranks = group.get()](ExitCode code) {
      ranks->RequestStop(code);
      ranks->Leave();
      end_at_once(code);
    });
    if (mode.dry_run && !config.teacher.cache_only) config.teacher.cache_dir.clear();
    if (group->is_root()) PrintChangedSettings(config);
    return TrainingRun(std::move(config), control, group.get()).Run(mode);
  });
  failure = LeaveRanks(group.get(), std::move(failure));
  control->PassStopsOn(nullptr);
  return failure;
}

}  // namespace

Subcommand AddTrain(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "Train a student by on-policy distillation");
  auto flags = RunFlags::AddTo(command);
  command
      ->add_flag("--dry-run", flags->mode.dry_run,
                 "Check the configuration, the data, the memory plan and the teacher, and compute "
                 "the loss of one batch. No weight changes, and nothing is left on the disk")
      ->excludes("--resume");
  return {command,
          [flags]() -> absl::Status {
            TAOPD_ASSIGN_OR_RETURN(TrainConfig config, flags->config.ReadTrainConfig());
            StopOnSignals(flags->control);
            return RunTraining(std::move(config), flags->mode, flags->control.get());
          },
          /*takes_signals=*/true};
}

}  // namespace taopd
