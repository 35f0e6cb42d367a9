// The results of a run that the headline shows.
#pragma once

#include <optional>

#include "trainer/report/run_record.h"

namespace taopd::report {

// A share, with its confidence interval and its number of problems if they are known.
struct Measured {
  double value = 0;
  std::optional<double> low, high, n;
};

struct RunResults {
  // Accuracies. Those of the student are measured before and after training.
  std::optional<Measured> teacher, before, after;
  std::optional<double> kl_before, kl_after;
  // There is no summary.json: `before` and `after` are the first and the latest evaluation.
  bool from_evaluations = false;
  std::optional<double> steps;
  std::optional<double> seconds;
  // The median over the steps.
  std::optional<double> tokens_per_s;
};

RunResults ResultsOf(const RunRecord& run);

// Returns the share of the gap between the student before training and the teacher that training
// has closed. Empty if the teacher is not better than the student was.
std::optional<double> GapClosed(const RunResults& results);

}  // namespace taopd::report
