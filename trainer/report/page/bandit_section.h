// The section for a bandit file. It has the paper's two figures (the final policies, and the
// trajectories over the landscape of the full reverse KL) and a table of where each objective ends.
#pragma once

#include <string>

#include "trainer/bandit/bandit.h"

namespace taopd::report {

// Returns one section. `id` is unique in the page (letters, digits and '-').
std::string RenderBandit(const bandit::Result& result, const std::string& id);

}  // namespace taopd::report
