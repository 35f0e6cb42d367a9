#include "trainer/report/report.h"

#include <utility>

#include "common/io/file.h"
#include "trainer/report/page.h"
#include "trainer/report/run_record.h"

namespace taopd {

absl::Status WriteReport(const std::vector<std::string>& run_dirs, const std::string& output_path) {
  if (run_dirs.empty()) return InvalidArgument("a report needs at least one run directory");
  std::vector<RunRecord> runs;
  for (const std::string& dir : run_dirs) {
    TAOPD_ASSIGN_OR_RETURN(RunRecord run, ReadRun(dir));
    runs.push_back(std::move(run));
  }
  MakeNamesUnique(&runs);
  return WriteFileAtomically(output_path, RenderPage(runs));
}

}  // namespace taopd
