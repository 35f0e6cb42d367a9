// One row per subcommand.
#include "trainer/cli/subcommand.h"

namespace taopd {

Subcommand AddTrain(CLI::App& app);
Subcommand AddSft(CLI::App& app);
Subcommand AddLaunch(CLI::App& app);
Subcommand AddEval(CLI::App& app);
Subcommand AddExport(CLI::App& app);
Subcommand AddData(CLI::App& app);
Subcommand AddPlan(CLI::App& app);
Subcommand AddGenerate(CLI::App& app);
Subcommand AddGrade(CLI::App& app);
Subcommand AddReport(CLI::App& app);
Subcommand AddConfig(CLI::App& app);
Subcommand AddObjectives(CLI::App& app);
Subcommand AddTokenize(CLI::App& app);
Subcommand AddRender(CLI::App& app);
Subcommand AddObjective(CLI::App& app);
Subcommand AddBandit(CLI::App& app);
Subcommand AddScore(CLI::App& app);
Subcommand AddBenchTeacher(CLI::App& app);
Subcommand AddBenchRollout(CLI::App& app);

const std::vector<AddSubcommand>& AllSubcommands() {
  static const std::vector<AddSubcommand> rows = {
      AddTrain,     AddSft,    AddLaunch, AddEval,         AddExport,       AddData,     AddPlan,
      AddGenerate,  AddGrade,  AddReport, AddConfig,       AddObjectives,   AddTokenize, AddRender,
      AddObjective, AddBandit, AddScore,  AddBenchTeacher, AddBenchRollout,
  };
  return rows;
}

}  // namespace taopd
