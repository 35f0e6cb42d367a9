// The limits that apply to a single process: ulimit -d (RLIMIT_DATA) and ulimit -v (RLIMIT_AS).
// Unlike the machine's memory, processes do not share them.
#pragma once

#include <cstdint>
#include <string>

#include "common/memory/memory_budget.h"

namespace taopd {

// Returns what these limits still leave to this process, or INT64_MAX if there are none. `root` is
// that of common/base/memory.h.
int64_t LeftByOwnLimits(const std::string& root = "");

// Returns the budget, or kDefaultMemoryShare of what the limits leave plus what this process
// already holds, if that is less.
MemoryBudget WithinOwnLimits(MemoryBudget budget, const std::string& root = "");

}  // namespace taopd
