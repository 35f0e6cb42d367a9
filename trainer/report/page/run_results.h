// The results of a run that the headline shows.
#pragma once

#include <optional>
#include <vector>

#include "trainer/report/run_record.h"

namespace taopd::report {

// A share, with its interval and the number of problems where they are known.
struct MeasuredShare {
  double value = 0;
  std::optional<double> low, high, n;
};

struct RunResults {
  // Accuracies. Those of the student are measured before and after training.
  std::optional<MeasuredShare> teacher, before, after;
  std::optional<double> kl_before, kl_after;
  // True if there is no summary.json. `before` and `after` are then the first and the latest
  // evaluation.
  bool from_evaluations = false;
  std::optional<double> steps;
  std::optional<double> seconds;
  // The median over the steps.
  std::optional<double> tokens_per_s;
};

RunResults ResultsOf(const RunRecord& run);

// Returns the means of a group's results, with the lowest and the highest value of each share as
// its interval. A result that one of the runs lacks is missing. One run's results stay unchanged.
RunResults MeanResults(const std::vector<RunResults>& runs);

// Returns the share of the student's initial distance to the teacher's accuracy that training has
// closed. Empty if the teacher is not better than the student was.
std::optional<double> GapClosed(const RunResults& results);

}  // namespace taopd::report
