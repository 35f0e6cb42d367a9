// The page and its sections. Each function returns HTML in which everything that a run recorded is
// escaped.
#pragma once

#include <string>
#include <vector>

#include "trainer/bandit/bandit.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

// Returns the whole file. Without runs it has only the sections of the bandits.
std::string RenderPage(const std::vector<RunRecord>& runs,
                       const std::vector<bandit::Result>& bandits = {});

// Returns every run's results before and after training and its teacher's, as a picture and as a
// table.
std::string RenderHeadline(const std::vector<RunRecord>& runs);

// Returns the generations before and after training side by side, followed by those of evaluations.
// Empty if there are none.
std::string RenderSamples(const std::vector<RunRecord>& runs);

}  // namespace taopd::report
