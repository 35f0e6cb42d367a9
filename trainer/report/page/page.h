// The page and its sections. Each function returns HTML whose run content is escaped.
#pragma once

#include <string>
#include <vector>

#include "trainer/bandit/bandit.h"
#include "trainer/report/run_record.h"

namespace taopd {

// The whole file. Without runs it has the bandits' sections only.
std::string RenderPage(const std::vector<RunRecord>& runs,
                       const std::vector<BanditResult>& bandits = {});

// Before, after and teacher of every run: as a picture and as a table.
std::string RenderHeadline(const std::vector<RunRecord>& runs);

// Generations before and after training side by side, then those of evaluations. Empty without any.
std::string RenderSamples(const std::vector<RunRecord>& runs);

}  // namespace taopd
