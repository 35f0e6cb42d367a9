// The paper's two figures of a bandit file: the final policies, and the trajectories over the
// landscape of the full reverse KL; with a table of where each objective ends.
#pragma once

#include <string>
#include <vector>

#include "trainer/bandit/bandit.h"

namespace taopd {

// One section. `id` is unique in the page (letters, digits and '-').
std::string RenderBandit(const BanditResult& result, const std::string& id);

}  // namespace taopd
