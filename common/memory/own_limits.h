// The limits that a process may have of its own: ulimit -d (RLIMIT_DATA) and ulimit -v (RLIMIT_AS).
// Unlike the machine's memory, processes do not share them.
#pragma once

#include <cstdint>
#include <string>

#include "common/memory/memory_budget.h"

namespace taopd {

// What these limits still leave to this process; INT64_MAX if there are none. `root` is that of
// common/base/memory.h.
int64_t LeftByOwnLimits(const std::string& root = "");

// The budget, or kDefaultMemoryShare of what the limits leave and of what this process holds
// already, if that is less.
MemoryBudget WithinOwnLimits(MemoryBudget budget, const std::string& root = "");

}  // namespace taopd
