// The table of results. report.js sorts it by any of its columns or of the metrics.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/report/page/run_results.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

// A run, or the line of a group.
struct TableRow {
  const RunRecord* run;
  // Its index among the lines of the page, which sets its colour.
  size_t line;
  RunResults results;
  // The run's seed, or how many the group has.
  std::string seed;
};

// Returns a <table>. Columns of `settings`, paths, come first, and then that of the seeds unless
// its title is empty. A column of results stands in the table if one row has something for it.
std::string RenderTable(const std::vector<TableRow>& rows, const std::vector<std::string>& settings,
                        const std::string& seed_title);

// Returns a share with one decimal, so that numbers under each other line up. Values that are not
// shares (from a damaged summary) are shown as they are.
std::string Percent(double share);

}  // namespace taopd::report
