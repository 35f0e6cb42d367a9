// taopd-trainer: the list of its subcommands. It sees no header of CLI11, which takes seconds to
// compile.
#include <signal.h>

#include "common/base/memory.h"
#include "common/base/run_main.h"
#include "common/base/thread_waits.h"
#include "trainer/cli/subcommand.h"
#include "trainer/commands/catch_exceptions.h"

namespace taopd {
namespace {

// In the order of the help text.
constexpr AddSubcommand kSubcommands[] = {
    AddTrain,     AddSft,    AddLaunch, AddEval,         AddExport,       AddData,     AddPlan,
    AddGenerate,  AddGrade,  AddReport, AddConfig,       AddObjectives,   AddTokenize, AddRender,
    AddObjective, AddBandit, AddScore,  AddBenchTeacher, AddBenchRollout,
};

}  // namespace
}  // namespace taopd

[[gnu::used, gnu::section(".preinit_array")]] auto* const restart_at_load =
    taopd::RestartWithShortThreadWaits;

int main(int argc, char** argv) {
  // A write beyond a limit of the file size (ulimit -f) fails as on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  taopd::KeepFreedMemory();
  taopd::LeaveProcess(taopd::RunMain("taopd-trainer", [&] {
    return taopd::RunCommandLine(argc, argv, taopd::kSubcommands, taopd::CatchExceptions);
  }));
}
