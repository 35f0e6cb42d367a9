// The subcommand train.
#include "trainer/commands/commands.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/ranks.h"
#include "trainer/commands/train/training_run.h"

namespace taopd {

std::optional<CommandFailure> RunTraining(TrainConfig config, const StartMode& mode,
                                          RunState* state) {
  std::unique_ptr<ProcessGroup> group;
  std::optional<CommandFailure> failure = CatchExceptions([&]() -> std::optional<CommandFailure> {
    if (auto apart = JoinRanks(&config, &group)) return apart;
    return TrainingRun(std::move(config), state, group.get()).Run(mode);
  });
  return PartRanks(group.get(), std::move(failure));
}

}  // namespace taopd
