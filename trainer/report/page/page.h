// The page and its sections. Each function returns HTML in which everything that a run recorded is
// escaped.
#pragma once

#include <string>
#include <vector>

#include "trainer/bandit/bandit.h"
#include "trainer/report/comparison.h"
#include "trainer/report/run_record.h"

namespace taopd::report {

// The contents of report.css and report.js, which the build embeds in the library.
extern const char kReportCss[];
extern const char kReportJs[];

// Returns the whole file. Without runs it has only the sections of the bandits.
std::string RenderPage(const std::vector<RunRecord>& runs,
                       const std::vector<bandit::Result>& bandits = {});

// Returns the results before and after training and the teacher's, as a picture and as a table with
// the settings that differ, and for groups of several runs also a table of the runs.
std::string RenderHeadline(const std::vector<RunRecord>& runs, const Comparison& comparison);

// Returns the generations of each run before and after training side by side, and then those of
// evaluations. Empty if there are none.
std::string RenderSamples(const std::vector<RunRecord>& runs, const Comparison& comparison);

// Returns the section for a bandit file: the paper's two figures (the final policies, and the
// trajectories over the landscape of the full reverse KL) and a table of where each objective ends.
// `id` is unique in the page (letters, digits and '-').
std::string RenderBandit(const bandit::Result& result, const std::string& id);

}  // namespace taopd::report
