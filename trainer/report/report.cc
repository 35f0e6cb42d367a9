#include "trainer/report/report.h"

#include <filesystem>

#include "common/io/file.h"
#include "trainer/bandit/bandit_file.h"
#include "trainer/report/page/page.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

absl::StatusOr<std::string> MakeReport(const std::vector<std::string>& paths) {
  if (paths.empty()) return InvalidArgument("a report needs at least one run directory");
  std::vector<RunRecord> runs;
  std::vector<bandit::Result> bandits;
  for (const std::string& path : paths) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) {
      TAOPD_ASSIGN_OR_RETURN(bandits.emplace_back(), bandit::ReadResult(path));
    } else {
      TAOPD_ASSIGN_OR_RETURN(runs.emplace_back(), ReadRun(path));
    }
  }
  NameRuns(&runs);
  return RenderPage(runs, bandits);
}

absl::Status WriteReport(const std::vector<std::string>& paths, const std::string& output_path) {
  TAOPD_ASSIGN_OR_RETURN(const std::string page, MakeReport(paths));
  return WriteFileAtomically(output_path, page);
}

}  // namespace taopd::report
