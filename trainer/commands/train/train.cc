// The subcommand train.
#include "trainer/commands/commands.h"
#include "trainer/commands/process.h"
#include "trainer/commands/train/training_run.h"

namespace taopd {

std::optional<CommandFailure> RunTraining(TrainConfig config, const StartMode& mode,
                                          RunState* state) {
  return CatchExceptions([&] { return TrainingRun(std::move(config), state).Run(mode); });
}

}  // namespace taopd
