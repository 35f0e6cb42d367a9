// Counts the system calls of a save and makes one of them fail or end the process. This test
// program defines its own write, fsync, rename, mkdir and open for writing, which replace the C
// library's.
#pragma once

#include <string>

namespace taopd::testing {

enum class Fault { kNone, kKillBefore, kKillAfter, kFail };

// From now on counts the calls below `dir`; the fault happens at call number `index` (from 0).
// kFail returns `error_number`.
void ArmFault(Fault fault, int index, int error_number = 0);
// Returns the number of calls since ArmFault.
int NumSystemCalls();

}  // namespace taopd::testing
