// Finds the runs that belong together: those whose settings are equal but for the seed. The page
// draws them as one line.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trainer/report/run_record.h"

namespace taopd::report {

struct Comparison {
  // The paths of the settings that differ between the groups, in the order of config.yaml.
  std::vector<std::string> settings;
  // One for each group, in the order of their first runs. A group of one run is that run. The line
  // of a larger one has the settings of its first run, and the mean of each metric at the steps
  // that all its runs recorded, with the lowest and the highest value as the ends of its interval.
  // It has neither a summary nor samples.
  std::vector<RunRecord> lines;
  // The group of each run: an index of `lines`.
  std::vector<size_t> line_of_run;
  // Sentences that the reader of the page has to know.
  std::vector<std::string> notes;

  // Whether a group has more than one run.
  bool HasSeeds() const { return lines.size() < line_of_run.size(); }
};

// Groups runs that NameRuns has named. Runs of one group may differ in directories, names, ports
// and seeds. They may also differ in models, data and endpoints, which may be made anew for each
// seed, unless two of them have the same seed. If a group then still has a seed twice, each of its
// runs stays alone, as does a run without settings.
Comparison CompareRuns(const std::vector<RunRecord>& runs);

}  // namespace taopd::report
